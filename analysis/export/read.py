"""Settings of a foreign launch script, program or configuration file, by their names there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from analysis.export.read_shell import Word, command_words
from analysis.export.rules import Var
from rlhf_core.config.io import parse_yaml
from rlhf_core.errors import ConfigError

YAML = (".yaml", ".yml", ".json")


def read_openrlhf(text: str, source: str) -> dict[str, Any]:
    """Flags of a command line of ``openrlhf.cli.train_ppo_ray``."""
    return flag_values(command_words(text, "train_ppo_ray", source))


def read_verl(text: str, source: str) -> dict[str, Any]:
    """Overrides of a command line of ``verl.trainer.main_ppo``, or a YAML configuration."""
    if Path(source).suffix in YAML:
        return flat(_mapping(text, source))
    return dict(
        _override(word, source)
        for word in command_words(text, "main_ppo", source)
        if "=" in _text(word)
    )


def read_trl(text: str, source: str) -> dict[str, Any]:
    """Arguments of ``PPOConfig`` in a program, a YAML or JSON file, or flags of a command line."""
    if Path(source).suffix in YAML:
        return _mapping(text, source)
    if Path(source).suffix == ".py" or "PPOConfig(" in text:
        return _program(text, source)
    typed = flag_values(command_words(text, "ppo", source))
    return {name: _scalar(value, source) for name, value in typed.items()}


def flag_values(words: Iterable[Word]) -> dict[str, Any]:
    """``--name value``, ``--name=value``, ``--name a b`` and ``--name`` as a mapping."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if isinstance(word, str) and word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = value if equals else True
        elif name:
            before = found[name]
            found[name] = word if before is True else [*_listed(before), word]
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(word: Word) -> str:
    return word if isinstance(word, str) else word.name


def _override(word: Word, source: str) -> tuple[str, Any]:
    name, _, value = _text(word).partition("=")
    name = name.lstrip("+~")
    if value.startswith("$"):
        return name, Var(value.strip("${}"), "")
    return name, _scalar(value, source)


def _scalar(value: Any, source: str) -> Any:
    """A value as YAML reads it; what is no YAML stays text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_yaml(value, source)
    except ConfigError:
        return value


def _mapping(text: str, source: str) -> dict[str, Any]:
    values = parse_yaml(text, source)
    if not isinstance(values, dict):
        raise ConfigError(
            f"{source}: a configuration is a mapping of keys to values, but this is none"
        )
    return values


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings with dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _program(text: str, source: str) -> dict[str, Any]:
    try:
        return _arguments(ast.parse(text), source)
    except SyntaxError as error:
        raise ConfigError(
            f"{source}: line {error.lineno} is no valid Python: {error.msg}"
        ) from None
    # What the parser raises, by its depth, where brackets or operators are nested too deeply for it.
    except (MemoryError, RecursionError):
        raise ConfigError(f"{source}: is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{source}: is no valid Python: {error}") from None


def _arguments(tree: ast.Module, source: str) -> dict[str, Any]:
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "PPOConfig"
    ]
    if len(calls) != 1:
        raise ConfigError(f"{source}: one call of PPOConfig is read, but there are {len(calls)}")
    arguments = {
        word.arg: _literal(word.value, constants) for word in calls[0].keywords if word.arg
    }
    named = {name: _literal(node, constants) for name, node in constants.items() if name.isupper()}
    # A constant that holds the configuration itself is no setting.
    return {**{k: v for k, v in named.items() if constants[k] is not calls[0]}, **arguments}


def _literal(node: ast.expr, constants: Mapping[str, ast.expr], depth: int = 0) -> Any:
    """The value of a literal, of a constant of the program, or a variable in its place."""
    if isinstance(node, ast.Name) and node.id in constants and depth < 8:
        return _literal(constants[node.id], constants, depth + 1)
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
        name = ast.literal_eval(node.slice) if isinstance(node.slice, ast.Constant) else node.slice
        return Var(str(name), "")
    try:
        return ast.literal_eval(node)
    # A set of lists is none, for example.
    except (ValueError, TypeError):
        return Var(ast.unparse(node), "")
