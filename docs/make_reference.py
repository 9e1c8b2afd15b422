"""Writes docs/reference.md: every option of a trial and of a sweep, and every metric. Run from anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt

from rlhf_core.config.fields import dotted_fields
from rlhf_core.config.trial import TrialConfig
from rlhf_core.metrics import CATALOGUE
from search_spaces.rules import KINDS, Rule
from sweeps.config import SweepConfig

TARGET = Path(__file__).with_name("reference.md")
SIGNS = {Ge: (">=", "ge"), Gt: (">", "gt"), Le: ("<=", "le"), Lt: ("<", "lt")}


def bounds(field: Any) -> str:
    """Bounds of a field, such as ``> 0, <= 1``."""
    found = [
        f"{sign} {getattr(rule, attribute):g}"
        for rule in field.metadata
        for kind, (sign, attribute) in SIGNS.items()
        if isinstance(rule, kind)
    ]
    return ", ".join(found)


def kind(field: Any) -> str:
    """Type of a field, or its literal choices."""
    text = str(field.annotation).replace("typing.", "").replace("NoneType", "null")
    text = re.sub(r"rlhf_core\.[\w.]+\.(\w+)", r"\1", text)
    text = re.sub(r"Annotated\[(\w+), \w+\([^)]*\)\]", r"\1", text)
    if text.startswith("<class"):
        text = field.annotation.__name__
    if text.startswith("Literal["):
        return text[8:-1].replace("'", "`").replace(", ", ", ")
    return text.replace(" | None", " or null").replace("|", "or")


def options(model: Any, skip: tuple[str, ...] = ()) -> Iterator[str]:
    """A table row for each option."""
    yield "| option | type | default | bounds | unit | meaning |"
    yield "|---|---|---|---|---|---|"
    for key, field in dotted_fields(model):
        if key.split(".")[0] in skip:
            continue
        default = field.get_default(call_default_factory=True)
        shown = "null" if default is None else default
        unit = (field.json_schema_extra or {}).get("unit", "")
        yield f"| `{key}` | {kind(field)} | {shown} | {bounds(field)} | {unit} | {field.description} |"


def rules() -> Iterator[str]:
    """The kinds of rules; a term is a key, searched or not, or a number."""
    yield "| rule | means |"
    yield "|---|---|"
    letters = ("a", "b", "c")
    for name, rule in KINDS.items():
        terms = letters[: min(rule.most, max(rule.least, 2 if name == "at_most" else 3))]
        shown = f"{{{name}: [{', '.join(terms)}]}}" if terms else name
        yield f"| `{shown}` | {Rule(name, terms)} |"
    yield "| `{at_most: [a, b], times: 2}` | 2 x a <= b |"


def metrics() -> Iterator[str]:
    yield "| metric | unit | better | over an iteration | repeatable | meaning |"
    yield "|---|---|---|---|---|---|"
    for m in CATALOGUE.values():
        repeat = "yes" if m.repeatable else "no"
        yield f"| `{m.name}` | {m.unit} | {m.direction} | {m.reduction} | {repeat} | {m.description} |"


def render() -> str:
    """The whole page."""
    parts = [
        "# Reference",
        "",
        "Made by `python docs/make_reference.py` from the code.",
        "",
        "## Options of a trial",
        "",
        "Keys of a trial's file, of `base` in a sweep, and of a search space.",
        "`NAME` is a name of your own: lower-case letters, digits and underscores, a letter first.",
        "",
        *options(TrialConfig),
        "",
        "## Options of a sweep",
        "",
        *options(SweepConfig, skip=("base", "space")),
        "",
        "`base` is a trial preset's name, a file (.yaml, .yml, .json) or a trial's options (with "
        "`extends: PRESET|FILE`);",
        "`space` is a space preset's name, `module:NAME` or `FILE.py:NAME` of a space in Python, or a mapping",
        "`{dotted key: domain}`. [How to choose and change one](tuning.md).",
        "",
        "| domain | meaning |",
        "|---|---|",
        "| `{float: [low, high]}` | numbers; with `log: true` ratios count, with `logit: true` odds (within 0 "
        "and 1), with `step: s` they form a grid |",
        "| `{int: [low, high]}` | whole numbers; with `log: true` ratios count, with `pow2: true` they are "
        "powers of two, with `step: s` a grid |",
        "| `{choice: [...]}` | one of the values |",
        "| `{constant: value}` | set, not searched |",
        "",
        "Bounds are inclusive. Each may have `when: {other key: value or [values]}`, and all but constants a",
        "`centre`, a good first value, [where the search begins](search.md#where-it-begins). Beside the keys "
        "a space may hold:",
        "",
        "| word | meaning |",
        "|---|---|",
        "| `extends: NAME or [NAMES]` | starts from presets or Python spaces, later ones first in rank |",
        "| `model_size: 135M` | size by which bounds of presets scale; by default that of the trial's policy |",
        "| `drop: [keys]` | leaves keys to `base` |",
        "| `narrow: {key: [low, high]}` | closer bounds |",
        "| `freeze: {key: value}` | one value |",
        "| `rules: [...]` | what every point keeps; see below |",
        "",
        *rules(),
        "",
        "## Metrics",
        "",
        *metrics(),
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
