"""The words of the film-review grammar and what they are worth. Plain data."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_GRADES: dict[float, str] = {
    -2.0: "awful terrible dreadful horrible unbearable atrocious abysmal painful disastrous dismal",
    -1.2: "bad dull weak boring clumsy lazy shallow messy bland stale hollow forced silly tedious",
    -0.5: "uneven slow thin plain predictable muddled dated cold loud stiff",
    0.0: "average ordinary familiar simple standard usual typical conventional modest",
    0.5: "decent fine pleasant watchable neat solid tidy competent likeable",
    1.2: "good clever fresh charming funny warm sharp lively smart gripping moving elegant witty",
    2.0: "brilliant superb wonderful stunning magnificent masterful dazzling perfect excellent",
}
ADJECTIVES: dict[str, float] = {
    word: value for value, words in _GRADES.items() for word in _words(words)
}
VERBS: dict[str, float] = {
    "hated": -1.8, "despised": -2.0, "regretted": -1.3, "endured": -1.0, "disliked": -1.0,
    "ignored": -0.5, "tolerated": -0.4, "noticed": 0.0, "followed": 0.0, "accepted": 0.1,
    "respected": 0.6, "liked": 0.9, "admired": 1.2, "enjoyed": 1.2, "praised": 1.3,
    "loved": 1.8, "adored": 2.0,
}  # fmt: skip
STRONG = 1.8
"""An opinion of at least this size, either sign, counts as a superlative."""

INTENSIFIERS: dict[str, float] = {
    "slightly": 0.5, "somewhat": 0.6, "mildly": 0.6, "fairly": 0.8, "rather": 0.9, "quite": 1.0,
    "really": 1.2, "very": 1.25, "truly": 1.3, "deeply": 1.3, "remarkably": 1.4, "utterly": 1.5,
    "absolutely": 1.5,
}  # fmt: skip
NEGATIONS: dict[str, float] = {"not": -0.6, "never": -0.7, "hardly": -0.5}

ASPECTS = _words(
    "acting plot story script music camera editing dialogue pacing ending opening cast humor "
    "direction soundtrack lighting premise romance staging narration setting tone"
)
GENRES = _words(
    "film movie drama comedy thriller western sequel remake documentary musical mystery picture"
)
KINDS = _words("new recent short long foreign french local small big late")
NOUNS = _words("effort attempt surprise experience journey exercise choice piece work result")
PLURALS = _words(
    "jokes scenes lines twists moments costumes songs sets characters posters images ideas details"
)
SUBJECTS = (
    "i", "we", "everyone", "most critics", "some viewers", "the audience", "my friends",
    "many people", "the children", "our neighbors", "the whole crowd",
)  # fmt: skip
OBJECTS = ("it", "every minute", "most of it", "the whole thing", "each part", "the first half")
CONTRAST = (", but", ", yet", " though", " while")
SUPPORT = (" and", ", and", " because", ", so", " since")
FRAMES = (
    "the {aspect} in this {genre} is",
    "the {aspect} of the {genre} is",
    "in this {genre} the {aspect} is",
    "for a {genre} the {aspect} is",
    "i think the {aspect} in this {genre} is",
    "compared to the last {genre} the {aspect} is",
    "tonight we saw a {genre} and the {aspect} is",
)


def _categories() -> dict[str, str]:
    groups = {
        "ADJECTIVE": ADJECTIVES, "VERB": VERBS, "INTENSIFIER": INTENSIFIERS, "NEGATION": NEGATIONS,
        "ASPECT": ASPECTS, "GENRE": GENRES, "KIND": KINDS, "NOUN": NOUNS, "PLURAL": PLURALS,
        "CONTRAST": ("but", "yet", "though", "while"),
        "SUPPORT": ("because", "so", "since"),
        "PRONOUN": ("i", "we", "everyone"),
        "QUANTITY": ("most", "some", "my", "many", "our"),
        "PERSON": (
            "critics", "viewers", "friends", "people", "neighbors", "audience", "children", "crowd",
        ),
        "PART": ("minute", "thing", "part", "half"),
    }  # fmt: skip
    found: dict[str, str] = {}
    for category, words in groups.items():
        for word in words:
            assert found.setdefault(word, category) == category, word
    return found


CATEGORY: dict[str, str] = _categories()
"""Kind of each content word; other words of the grammar are a kind of their own."""
