"""Make a task folder from rated texts: `prepare`.

Rows are dealt to three parts. The first gives the reward model, the second the held-out reward
model, and both together the policy. The third is seen by no model: test prompts come from it, and
perplexity and pair accuracies are measured on it.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rlhf_core.errors import ConfigError
from rlhf_core.tasks.folder import MANIFEST, SPLITS, TaskFolder, finished_or_absent
from rlhf_core.tasks.ratings import RatedTexts, read_ratings
from rlhf_core.tasks.recipe import ModelSize, Progress, Schedule

PREPARE_VERSION = 1
"""Raise it when the code changes what a recipe yields."""


@dataclass(frozen=True)
class PrepareRecipe:
    """Everything a prepared task depends on, apart from the rated texts.

    Attributes:
        name: Name of the task.
        text_column, rating_column: Columns of the file.
        seed: Seeds the deal of the rows, prompts, weights and orders.
        vocab: Most tokens of the tokenizer.
        max_tokens: Texts are cut to so many tokens.
        model: Shape of all three models.
        policy: Schedule of the policy.
        reward: Schedule of both reward models, in pairs.
        rating_margin: Least difference of ratings in a training pair.
        unseen_share: Share of rows that no model is trained on.
        prompt_words: Fewest and most words of a prompt.
        train_prompts, eval_prompts, test_prompts: Most prompts in each split.
        samples: Responses sampled from the policy to centre the rewards.
        max_new_tokens: Longest response.
        minimum_rows: Fewest usable rows.
        threads: Torch threads for the policy; each reward model has one.
        max_steps: Upper limit on the steps of every model, for a quick try; None for no limit.
    """

    name: str = "prepared"
    text_column: str = "text"
    rating_column: str = "rating"
    seed: int = 0
    vocab: int = 2000
    max_tokens: int = 48
    model: ModelSize = field(default_factory=lambda: ModelSize(layers=3))
    policy: Schedule = field(default_factory=lambda: Schedule(steps=550, batch=64, lr=3e-3))
    reward: Schedule = field(default_factory=lambda: Schedule(steps=180, batch=64, lr=2e-3))
    rating_margin: float = 0.5
    unseen_share: float = 0.12
    prompt_words: tuple[int, int] = (3, 6)
    train_prompts: int = 4000
    eval_prompts: int = 256
    test_prompts: int = 512
    samples: int = 256
    max_new_tokens: int = 40
    minimum_rows: int = 100
    threads: int = 1
    max_steps: int | None = None

    def capped(self, schedule: Schedule) -> Schedule:
        """The schedule within ``max_steps``."""
        if self.max_steps is None:
            return schedule
        return replace(schedule, steps=min(schedule.steps, self.max_steps))


@dataclass(frozen=True)
class Parts:
    """Row numbers of the three parts."""

    reward: tuple[int, ...]
    heldout: tuple[int, ...]
    unseen: tuple[int, ...]


def prepare(
    data: str | Path,
    out: str | Path,
    recipe: PrepareRecipe | None = None,
    progress: Progress | None = None,
) -> TaskFolder:
    """Make a task folder from rated texts, or give back the finished one of the same recipe.

    Args:
        data: File of rated texts, see `rlhf_core.tasks.ratings.read_ratings`.
        out: Folder to make. It appears when all is done.
        recipe: Settings; the defaults take about three minutes for 10,000 sentences.
        progress: Called with stage ("policy", "reward"), steps done and steps there are.

    Raises:
        ConfigError: The file is no usable file of ratings, a setting is out of bounds, or ``out``
            holds something else, or another process is making it.
    """
    recipe = recipe or PrepareRecipe()
    check_recipe(recipe)
    out = Path(out).expanduser().resolve()
    rated = _distinct(
        read_ratings(data, recipe.text_column, recipe.rating_column, recipe.minimum_rows)
    )
    resolved = {**asdict(recipe), "prepare_version": PREPARE_VERSION, "data": _digest(rated)}
    resolved = json.loads(json.dumps(resolved))
    done = _existing(out, resolved)
    if done is not None:
        return done
    with _alone(out):
        # Another process may have finished it meanwhile.
        done = _existing(out, resolved)
        if done is not None:
            return done
        # Imported here, since bad input is told without waiting for torch and transformers.
        from rlhf_core.tasks.prepare_models import make_task

        with finished_or_absent(out) as part:
            make_task(rated, deal(rated, recipe), recipe, part, resolved, progress)
    return TaskFolder.load(out)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keeps other processes from making ``out`` at the same time.

    Raises:
        ConfigError: One is at it, or the folder above cannot be written.
    """
    lock = FileLock(out.with_name(f".{out.name}.lock"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"one `prepare` may make {out} at a time, but another is at it; wait for it, or give "
            "another folder"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{out.parent} must be writable, but: {error.strerror}; give another folder"
        ) from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def check_recipe(recipe: PrepareRecipe) -> None:
    """Refuse settings out of bounds, all together.

    Raises:
        ConfigError: One line for each broken rule.
    """
    low, high = recipe.prompt_words
    rules = [
        (0.0 < recipe.unseen_share < 0.9, "unseen_share", "between 0 and 0.9"),
        (
            1 <= low <= high,
            "prompt_words",
            "two numbers, at least 1, the first not above the second",
        ),
        (recipe.max_steps is None or recipe.max_steps >= 1, "max_steps", "at least 1, or None"),
        (recipe.rating_margin >= 0, "rating_margin", "at least 0"),
        (recipe.minimum_rows >= 20, "minimum_rows", "at least 20"),
        (recipe.max_new_tokens >= 1, "max_new_tokens", "at least 1"),
        (4 <= recipe.max_tokens <= recipe.model.positions, "max_tokens", "4 to model.positions"),
        (recipe.threads >= 1, "threads", "at least 1"),
        (recipe.samples >= 2, "samples", "at least 2"),
        (
            recipe.model.width % (2 * recipe.model.heads) == 0,
            "model",
            "width a multiple of 2 x heads",
        ),
    ]
    problems = [
        f"{name} must be {rule}, got {getattr(recipe, name)}; change it"
        for kept, name, rule in rules
        if not kept
    ]
    if problems:
        raise ConfigError(problems)


def deal(rated: RatedTexts, recipe: PrepareRecipe) -> Parts:
    """Deal the rows to the three parts, at random by the recipe's seed."""
    rows = list(range(len(rated.texts)))
    random.Random(recipe.seed).shuffle(rows)
    unseen = max(8, round(len(rows) * recipe.unseen_share))
    seen = rows[unseen:]
    return Parts(tuple(seen[0::2]), tuple(seen[1::2]), tuple(rows[:unseen]))


def prompt_splits(rated: RatedTexts, parts: Parts, recipe: PrepareRecipe) -> dict[str, list[str]]:
    """Beginnings of texts as disjoint prompt splits; test prompts from texts no model has seen.

    Raises:
        ConfigError: The texts are too short or too few for a prompt in each split.
    """
    rng = random.Random(recipe.seed)
    taken: set[str] = set()
    test = _beginnings(rated, parts.unseen, recipe, rng, taken)[: recipe.test_prompts]
    rows = [*parts.reward, *parts.heldout]
    rng.shuffle(rows)
    rest = _beginnings(rated, rows, recipe, rng, taken)
    # A small file should still leave most prompts for training.
    evaluation = min(recipe.eval_prompts, len(rest) // 5)
    splits = {
        "train": rest[evaluation : evaluation + recipe.train_prompts],
        "eval": rest[:evaluation],
        "test": test,
    }
    for split in SPLITS:
        if not splits[split]:
            raise ConfigError(
                f"each prompt split needs a text of at least {recipe.prompt_words[0] + 2} words, "
                f"but {split!r} got none of {len(rated.texts)} rows; give more or longer texts"
            )
    return splits


def rating_pairs(
    ratings: Sequence[float], rows: Sequence[int], count: int, margin: float, seed: int
) -> list[tuple[int, int]]:
    """Random pairs of rows, better first, whose ratings differ, by at least ``margin`` if they can.

    Raises:
        ConfigError: All rows have the same rating.
    """
    rng = random.Random(seed)
    spread = max(ratings[row] for row in rows) - min(ratings[row] for row in rows)
    if spread == 0:
        raise ConfigError(
            f"ratings must differ within each part, but {len(rows)} rows are all "
            f"{ratings[rows[0]]:g}; give more varied rows or another seed"
        )
    # Ratings on another scale may be closer together than the margin.
    margin = min(margin, spread / 2)
    pairs: list[tuple[int, int]] = []
    while len(pairs) < count:
        better, worse = rng.choice(rows), rng.choice(rows)
        difference = ratings[better] - ratings[worse]
        if difference > 0 and difference >= margin:
            pairs.append((better, worse))
    return pairs


def _beginnings(
    rated: RatedTexts,
    rows: Sequence[int],
    recipe: PrepareRecipe,
    rng: random.Random,
    taken: set[str],
) -> list[str]:
    low, high = recipe.prompt_words
    found = []
    for row in rows:
        words = rated.texts[row].split()
        if len(words) < low + 2:
            continue
        prompt = " ".join(words[: rng.randint(low, min(high, len(words) - 2))])
        if prompt not in taken:
            taken.add(prompt)
            found.append(prompt)
    return found


def _distinct(rated: RatedTexts) -> RatedTexts:
    # A text that came twice could land in two parts, and would then be seen and unseen.
    first: dict[str, float] = {}
    for text, rating in zip(rated.texts, rated.ratings, strict=True):
        first.setdefault(" ".join(text.split()), rating)
    return RatedTexts(tuple(first), tuple(first.values()), len(rated.texts) - len(first))


def _digest(rated: RatedTexts) -> str:
    return hashlib.sha256(json.dumps([rated.texts, rated.ratings]).encode()).hexdigest()[:16]


def _existing(out: Path, resolved: dict[str, Any]) -> TaskFolder | None:
    """The finished task of the same recipe; None where the place is free."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if (out / MANIFEST).is_file():
        task = TaskFolder.load(out)
        if dict(task.recipe) == resolved:
            return task
        differing = sorted(k for k in resolved if task.recipe.get(k) != resolved[k])
        raise ConfigError(
            f"{out} already holds a task made with other settings ({', '.join(differing)}); "
            "give another folder, or remove this one"
        )
    what = "already holds other files" if out.is_dir() else "is a file"
    raise ConfigError(f"{out} {what}; give a new or an empty folder")
