"""The text of an export: a launch script, a program or a configuration, with what became of every option."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from analysis.export.places import PLACES
from analysis.export.rules import Applied, Var, shown
from rlhf_core.config import TrialConfig, dump_yaml, flatten, nest

WIDTH = 100
DEFAULTS = flatten(TrialConfig())


def count_line(applied: Applied) -> str:
    """How many options were exported, converted and dropped."""
    parts = (len(applied.exported), len(applied.converted), len(applied.dropped))
    return (
        f"Of {sum(parts)} options {parts[0]} are exported as they are, {parts[1]} converted, "
        f"{parts[2]} dropped."
    )


def report(applied: Applied, config: TrialConfig) -> list[str]:
    """What became of every option, as lines: converted ones each, dropped ones by reason."""
    flat = flatten(config)
    lines = [count_line(applied), "", "Converted:"]
    for key, note in applied.converted.items():
        lines += _wrapped(f"{key} = {shown(flat[key])}: {note}")
    lines += ["", "Dropped (with the value where it is not the default):", *_dropped(applied, flat)]
    return [*lines, "", "Exported as they are:", *_wrapped(", ".join(applied.exported))]


def _dropped(applied: Applied, flat: Mapping[str, Any]) -> list[str]:
    """By reason: first what was set, then what is at its default, the places of roles in one line."""
    plain = {key for key in applied.dropped if key in DEFAULTS and flat[key] == DEFAULTS[key]}
    places = {key for key in plain if key.startswith(PLACES)}
    groups: dict[tuple[bool, str], list[str]] = {}
    for key, why in applied.dropped.items():
        if key not in places:
            text = key if key in plain else f"{key} = {shown(flat[key])}"
            groups.setdefault((key in plain, why), []).append(text)
    lines: list[str] = []
    for (_, why), keys in sorted(groups.items(), key=lambda group: group[0][0]):
        lines += _wrapped(f"{', '.join(keys)}: {why}")
    if places:
        reasons = dict.fromkeys(applied.dropped[key] for key in applied.dropped if key in places)
        lines += _wrapped(
            f"{PLACES}*, {len(places)} options at their defaults: {'; '.join(reasons)}"
        )
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def comment(lines: Iterable[str]) -> str:
    """Lines as comments of a shell, YAML or Python file."""
    return "".join(f"# {line}\n" if line else "#\n" for line in lines)


def variables(applied: Applied) -> dict[str, str]:
    """Names and meanings of the variables that an export leaves open."""
    found = (value for value in applied.theirs.values() if isinstance(value, Var))
    return {var.name: var.what for var in found}


def shell(command: str, words: Mapping[str, list[str]], applied: Applied, header: str) -> str:
    """A bash script.

    Args:
        command: What is run.
        words: The words of each setting.
        applied: What is exported; its notes become comments.
        header: Comment lines on top.
    """
    lines = ["set -euo pipefail", ""]
    needed = variables(applied)
    if needed:
        lines += ["# Set these first:"]
        lines += [f"#   {name:<16} {what}" for name, what in needed.items()] + [""]
    lines += ["args=("]
    for settings, notes in applied.settings:
        lines += [f"  # {key}: {note}" for key, note in notes.items()]
        lines += ["  " + " ".join(words[name]) for name in settings if words[name]]
    lines += [")", f'{command} "${{args[@]}}" "$@"']
    return f"#!/usr/bin/env bash\n{header}\n" + "\n".join(lines) + "\n"


def flags(applied: Applied) -> dict[str, list[str]]:
    """Settings as ``--name value``; a truth is a bare flag."""
    return {name: _flag(name, value) for name, value in applied.theirs.items()}


def _flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    values = value if isinstance(value, list) else [value]
    return [f"--{name}", *(_word(part) for part in values)]


def _word(value: Any) -> str:
    if isinstance(value, Var):
        return f'"${value.name}"'
    return shlex.quote(plain_number(value) if isinstance(value, float) else str(value))


def plain_number(value: float) -> str:
    """The shortest text of a number; a negative one without exponent, which argparse takes for a flag."""
    short = repr(value)
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return format(Decimal(short), "f") if value < 0 else short


def overrides(applied: Applied) -> dict[str, list[str]]:
    """Settings as hydra overrides."""
    return {name: [_override(name, value)] for name, value in applied.theirs.items()}


def _override(name: str, value: Any) -> str:
    if isinstance(value, Var):
        return f'{name}="${value.name}"'
    return shlex.quote(f"{name}={_hydra(value)}")


def _hydra(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, str):
        # Words go bare; what its grammar could take for something else is quoted.
        if re.fullmatch(r"[A-Za-z~/.][\w~/.-]*", value) and value not in ("null", "true", "false"):
            return value
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return shown(value) if value is None or isinstance(value, bool) else repr(value)


def nested_json(applied: Applied, lines: list[str]) -> str:
    """Settings with dotted names as nested JSON, which has no comments: they are a key of their own."""
    said = [line for line in lines if line]
    return json.dumps({"_comment": said, **nest(applied.theirs)}, indent=2, allow_nan=False) + "\n"


def plain(kind: str, config: TrialConfig, origin: str) -> str:
    """Our own configuration as YAML, JSON or shell variables; nothing is lost."""
    if kind == "yaml":
        return dump_yaml(config, f"Written from {origin}.")
    if kind == "json":
        return json.dumps(config.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
    head = comment(
        [f"Written from {origin}. Names are dotted keys; null is empty, a list is JSON."]
    )
    lines = [f"{variable_name(key)}={_env(value)}\n" for key, value in flatten(config).items()]
    return head + "".join(lines)


def variable_name(key: str) -> str:
    """The shell variable of a dotted key."""
    return key.upper().replace(".", "__")


def _env(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return shlex.quote(value)
    return shlex.quote(json.dumps(value))
