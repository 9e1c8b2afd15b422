"""How large a model is, from its folder alone: neither torch nor transformers, and nothing is loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


def parameters_of(source: str) -> int | None:
    """Parameters of a model folder, or of a hub id whose files lie in the local cache; None: not known."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        cached = _cached(source)
        if cached is None:
            return None
        folder = cached
    found = [math.prod(shape) for _, shape in _tensors(folder)]
    if found:
        return sum(found)
    weights = sorted(folder.glob("pytorch_model*.bin"))
    config = _json(folder / "config.json")
    kind = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if not weights or kind not in _BYTES:
        return None
    return sum(file.stat().st_size for file in weights) // _BYTES[kind]


def tensors_of(source: str) -> list[tuple[str, list[int]]]:
    """Names and shapes of a model folder's safetensors, or of a hub id's in the local cache; else none."""
    folder: Path | None = Path(source).expanduser()
    if folder is not None and not folder.is_dir():
        folder = _cached(source)
    return list(_tensors(folder)) if folder is not None else []


def _tensors(folder: Path) -> Iterator[tuple[str, list[int]]]:
    for file in sorted(folder.glob("*.safetensors")):
        yield from _shapes(file)


def _cached(source: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def _shapes(file: Path) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes of a safetensors file: its header is a length of eight bytes and as much JSON."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, entry["shape"]


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
