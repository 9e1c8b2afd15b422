"""Tolerant reading of the files in a run directory: what cannot be read is skipped and reported."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from analysis.shapes import Shape, anything
from rlhf_core.errors import ConfigError

SCHEMA_VERSION = 1


def read_document(
    path: Path, name: str, shape: Shape = anything, newest: int = SCHEMA_VERSION
) -> dict[str, Any]:
    """A versioned JSON file, such as ``sweep.json``.

    Args:
        path: The file.
        name: How messages call it.
        shape: What its keys must hold.
        newest: The newest version of its schema that is known.

    Raises:
        FileNotFoundError: There is no such file.
        ConfigError: It is not a JSON object, a key holds something else, or its schema is newer.
    """
    try:
        document = _parse(_content(path))
    except ValueError as error:
        raise ConfigError(
            f"{name} must be one JSON object, {path} is torn or edited ({error}); "
            "restore the file or run the sweep again"
        ) from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise ConfigError(
            f"{name} must state its schema_version as an integer, {path} has {version!r}; "
            "point at a directory that `rlhf-sweep run` wrote"
        )
    if version > newest:
        raise ConfigError(
            f"{name} has schema version {version}, this release reads up to {newest} "
            f"({path}); upgrade rlhf-sweeps"
        )
    fault = shape(document, "")
    if fault is not None:
        raise ConfigError(f"{name}: {fault} ({path}); restore the file or run the sweep again")
    return dict(document)


def read_object(
    path: str | Path, name: str, warnings: list[str], shape: Shape = anything
) -> dict[str, Any] | None:
    """A small JSON object written once, or None where it is missing, unreadable or of another shape.

    Only the unreadable file is reported here; whether a missing one is a fault depends on the
    trial's state, which the caller knows.
    """
    try:
        found = _parse(_content(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        warnings.append(f"{name}: no valid JSON, skipped ({error})")
        return None
    if not isinstance(found, dict):
        warnings.append(f"{name}: must be a JSON object, got {type(found).__name__}; skipped")
        return None
    fault = shape(found, "")
    if fault is not None:
        warnings.append(f"{name}: {fault}; skipped")
        return None
    return found


def read_lines(
    path: Path, name: str, warnings: list[str], shape: Shape = anything
) -> list[dict[str, Any]]:
    """The JSON objects of an append-only file, in order; lines that cannot be read are reported.

    Args:
        path: The file.
        name: How warnings call it.
        warnings: Gets one line for each line of the file that was skipped.
        shape: What the keys of a line must hold.

    Raises:
        FileNotFoundError: There is no such file.
        ConfigError: It cannot be read at all.
    """
    try:
        # Bytes, because a torn line may end in the middle of a character.
        lines = _content(path).split(b"\n")
    except ValueError as error:
        raise ConfigError(f"{name}: {error} ({path}); restore the file") from None
    count = len(lines) - (lines[-1] == b"")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:count], start=1):
        if not line.strip():
            continue
        try:
            record = _parse(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            where = "torn last line" if number == count else "no JSON object"
            warnings.append(f"{name} line {number}: {where}, skipped")
        elif (fault := shape(record, "")) is not None:
            warnings.append(f"{name} line {number}: {fault}; skipped")
        else:
            records.append(record)
    return records


def _content(path: str | Path) -> bytes:
    """The bytes of an ordinary file; a folder, a pipe, or one that is closed to us is a ValueError."""
    try:
        # Thousands of small files: without the detour over Path. A pipe must not be waited for.
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("it is no ordinary file")
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _parse(text: bytes) -> Any:
    """Fast, and where that refuses (NaN, very large integers) as the standard library reads it."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A draft beside ``target`` that takes its place at the end; a reader never sees half a file."""
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
