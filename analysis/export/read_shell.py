"""Words of the command that a shell script runs. Nothing is executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from analysis.export.rules import Var
from rlhf_core.errors import ConfigError

Word = str | Var
_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"(?:export\s+)?({_NAME})=(.*)", re.DOTALL)
_VARIABLE = re.compile(rf"\$(?:{{({_NAME})(?::?-([^}}]*))?}}|({_NAME}))")
_ARRAY = re.compile(rf"\$\{{({_NAME})\[[@*]\]\}}")


def command_words(text: str, program: str, source: str) -> list[Word]:
    """The words after ``program`` in a script or a bare command line, variables of the script filled in.

    Args:
        text: The script.
        program: A word of the command, or the end of one, such as ``train_ppo_ray``.
        source: Starts every line of the error.

    Raises:
        ConfigError: A quotation is not closed, or no command names ``program``.
    """
    values: dict[str, str] = {}
    arrays: dict[str, list[str]] = {}
    for words in _commands(text, source):
        if _assigned(words, values, arrays):
            continue
        at = next((i for i, word in enumerate(words) if _is(word, program)), None)
        if at is not None:
            return [_filled(word, values) for word in _spread(words[at + 1 :], arrays)]
    if text.lstrip().startswith("-"):
        words = [word for line in _commands(text, source) for word in line]
        return [_filled(word, values) for word in words]
    raise ConfigError(
        f"{source}: no command runs {program}; give a script or command line that does"
    )


def _is(word: str, program: str) -> bool:
    return word.removesuffix(".py").split("/")[-1].split(".")[-1] == program


def _assigned(words: list[str], values: dict[str, str], arrays: dict[str, list[str]]) -> bool:
    """Takes note of a line that only assigns."""
    rest = words[1:] if words[0] in ("export", "declare", "local") else words
    match = _ASSIGNMENT.match(rest[0]) if rest else None
    if match is None:
        return False
    name, value = match.groups()
    if value.startswith("("):
        inner = [value[1:], *rest[1:]]
        arrays[name] = [word for word in inner if word not in ("", ")")]
        return True
    if len(rest) > 1 and not all(_ASSIGNMENT.match(word) for word in rest):
        return False
    for word in rest:
        name, _, value = word.partition("=")
        values[name] = value
    return True


def _commands(text: str, source: str) -> Iterator[list[str]]:
    """The words of each command; lines are joined at a backslash, an open quotation or an open array."""
    pending: list[str] = []
    held = ""
    for line in text.splitlines():
        held = f"{held}\n{line}" if held else line
        stripped = re.sub(r"\\$", "", held)
        if stripped != held:
            # A comment inside a continued command ends at its line.
            held = stripped.split(" #")[0] if " #" in stripped and "'" not in stripped else stripped
            held += " "
            continue
        try:
            pending += shlex.split(held, comments=True)
        except ValueError:
            continue
        held = ""
        if _opens_array(pending) and ")" not in pending:
            continue
        if pending:
            yield pending
        pending = []
    if held.strip():
        raise ConfigError(f"{source}: a quotation is not closed, so that the script cannot be read")
    if pending:
        yield pending


def _opens_array(words: list[str]) -> bool:
    return bool(words) and re.match(rf"{_NAME}=\(", words[0]) is not None


def _spread(words: list[str], arrays: dict[str, list[str]]) -> Iterator[str]:
    for word in words:
        array = _ARRAY.fullmatch(word)
        if array is not None:
            yield from arrays.get(array.group(1), [])
        elif word in (">", ">>", "2>&1", "|", "&", "&&", ";") or word.startswith(("2>", ">")):
            return
        elif word not in ("$@", "$*"):
            yield word


def _filled(word: str, values: dict[str, str]) -> Word:
    """The word with the script's variables in place; one that stays open is a ``Var``."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(3)
        return values.get(name, match.group(2) or match.group(0))

    for _ in range(8):  # variables of variables
        filled = _VARIABLE.sub(value, word)
        if filled == word:
            break
        word = filled
    left = _VARIABLE.search(word)
    if left is None:
        return word
    name, _, setting = word.rpartition("=")
    if name and _VARIABLE.search(name) is None:
        return word
    return Var((left.group(1) or left.group(3)) if left.group(0) == setting else word, "")
