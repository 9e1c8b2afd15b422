"""Words of the command that a shell script runs. Nothing is executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from analysis.export.rules import Var
from rlhf_core.errors import ConfigError

Word = str | Var
# As much as a system passes to a program.
_LONGEST = 2**20
_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"{_NAME}=.*", re.DOTALL)
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
            return _all_filled(_spread(words[at + 1 :], arrays), values, source)
    if text.lstrip().startswith("-"):
        words = [word for line in _commands(text, source) for word in line]
        return _all_filled(words, values, source)
    raise ConfigError(
        f"{source}: no command runs {program}; give a script or command line that does"
    )


def _is(word: str, program: str) -> bool:
    return word.removesuffix(".py").split("/")[-1].split(".")[-1] == program


def _assigned(words: list[str], values: dict[str, str], arrays: dict[str, list[str]]) -> bool:
    """Takes note of a command that only assigns."""
    rest = words[1:] if words[0] in ("export", "declare", "local") else words
    if len(rest) > 1 and rest[1] == "(" and _ASSIGNMENT.fullmatch(rest[0]):
        arrays[rest[0].removesuffix("=")] = [word for word in rest[2:] if word != ")"]
        return True
    if not rest or not all(_ASSIGNMENT.fullmatch(word) for word in rest):
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
        held = f"{held}\n{line}" if held.strip() else line
        if held.endswith("\\"):
            held = held[:-1] + " "
            continue
        try:
            pending += _split(held)
        except ValueError:
            continue
        held = ""
        if pending.count("(") > pending.count(")"):
            continue
        yield from _parts(pending)
        pending = []
    if held.strip():
        try:
            pending += _split(held)
        except ValueError:
            rule = "a quotation is not closed, so that the script cannot be read"
            raise ConfigError(f"{source}: {rule}") from None
    yield from _parts(pending)


def _split(line: str) -> list[str]:
    """Words as a shell splits them; brackets and semicolons are words of their own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();")
    lexer.whitespace_split = True
    return list(lexer)


def _parts(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in [*words, ";"]:
        if word.strip(";"):
            part.append(word)
        elif part:
            yield part
            part = []


def _spread(words: list[str], arrays: dict[str, list[str]]) -> Iterator[str]:
    for word in words:
        array = _ARRAY.fullmatch(word)
        if array is not None:
            yield from arrays.get(array.group(1), [])
        elif word in (">", ">>", "2>&1", "|", "&", "&&", ";") or word.startswith(("2>", ">")):
            return
        elif word not in ("$@", "$*"):
            yield word


def _all_filled(words: Iterable[str], values: dict[str, str], source: str) -> list[Word]:
    """Words with the script's variables in place, as long as a command line may be."""
    filled: list[Word] = []
    left = _LONGEST
    for word in words:
        try:
            made = _filled(word, values, left)
        except OverflowError:
            left = -1
        else:
            left -= 1 + len(made if isinstance(made, str) else made.name)
            filled.append(made)
        if left < 0:
            rule = f"the command is longer than {_LONGEST} characters with its variables in place"
            raise ConfigError(f"{source}: {rule}; shorten the variables")
    return filled


def _filled(word: str, values: dict[str, str], longest: int) -> Word:
    """The word with the script's variables in place; one that stays open is a ``Var``.

    Raises:
        OverflowError: It would be longer than ``longest``; nothing so long is made.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(3)
        return values.get(name, match.group(2) or match.group(0))

    for _ in range(8):  # variables of variables
        if sum(len(value(match)) for match in _VARIABLE.finditer(word)) > longest:
            raise OverflowError
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
