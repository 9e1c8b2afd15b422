"""Tolerant reading of the files in a run directory: what cannot be read is skipped and reported."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from rlhf_core.errors import ConfigError

SCHEMA_VERSION = 1


def read_document(path: Path, name: str) -> dict[str, Any]:
    """A versioned JSON file, such as ``sweep.json``.

    Args:
        path: The file.
        name: How messages call it.

    Raises:
        FileNotFoundError: There is no such file.
        ConfigError: It is not a JSON object, or was written under a newer schema.
    """
    try:
        document = json.loads(path.read_bytes())
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
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"{name} has schema version {version}, this release reads up to {SCHEMA_VERSION} "
            f"({path}); upgrade rlhf-sweeps"
        )
    return dict(document)


def read_object(path: str | Path, name: str, warnings: list[str]) -> dict[str, Any] | None:
    """A small JSON object written once, or None where it is missing or unreadable.

    Only the unreadable file is reported here; whether a missing one is a fault depends on the
    trial's state, which the caller knows.
    """
    try:
        # Thousands of small files: without the detour over Path.
        with open(path, "rb") as file:  # noqa: PTH123
            found = _parse(file.read())
    except FileNotFoundError:
        return None
    except ValueError as error:
        warnings.append(f"{name}: no valid JSON, skipped ({error})")
        return None
    if not isinstance(found, dict):
        warnings.append(f"{name}: must be a JSON object, got {type(found).__name__}; skipped")
        return None
    return found


def read_lines(path: Path, name: str, warnings: list[str]) -> list[dict[str, Any]]:
    """The JSON objects of an append-only file, in order; lines that cannot be read are reported.

    Args:
        path: The file.
        name: How warnings call it.
        warnings: Gets one line for each line of the file that was skipped.

    Raises:
        FileNotFoundError: There is no such file.
    """
    # Bytes, because a torn line may end in the middle of a character.
    lines = path.read_bytes().split(b"\n")
    count = len(lines) - (lines[-1] == b"")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:count], start=1):
        if not line.strip():
            continue
        try:
            record = _parse(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            where = "torn last line" if number == count else "no JSON object"
            warnings.append(f"{name} line {number}: {where}, skipped")
    return records


def _parse(text: bytes) -> Any:
    """Fast, and where that refuses (NaN, very large integers) as the standard library reads it."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A draft beside ``target`` that takes its place at the end; a reader never sees half a file."""
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
