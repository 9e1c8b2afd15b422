"""How large a model is, from its folder alone: neither torch nor transformers, and nothing is loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Bytes of a number, by the names that configurations and models' files have for its type.
ITEM_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
# Architectures whose passes and decoding are this project's own.
LEAN = ("llama", "qwen2")


@dataclass(frozen=True)
class ModelShape:
    """What memory follows from.

    Attributes:
        parameters: All of them.
        layers: Decoder layers.
        width: Hidden size.
        inner: Width inside the feed-forward blocks.
        query, key: Width of all query heads, and of all key heads; values are as wide as keys.
        vocabulary: Rows of the embedding.
        tied: Whether the output head is the embedding.
        lean: Whether its passes are this project's own.
    """

    parameters: int
    layers: int
    width: int
    inner: int
    query: int
    key: int
    vocabulary: int
    tied: bool
    lean: bool

    @property
    def trunk(self) -> int:
        """Parameters without an output head of their own."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.width)


def shape_of(source: str) -> ModelShape | None:
    """Shape of a model folder, or of a hub id whose files lie in the local cache; None: not known."""
    folder, count = _folder(source), parameters_of(source)
    config = _json(folder / "config.json") if folder is not None else {}
    config = config.get("text_config", config)
    width, layers = (
        _first(config, "hidden_size", "n_embd"),
        _first(config, "num_hidden_layers", "n_layer"),
    )
    heads, words = _first(config, "num_attention_heads", "n_head"), _first(config, "vocab_size")
    if None in (count, width, layers, heads, words):
        return None
    head = _head(config)
    return ModelShape(
        parameters=count,
        layers=layers,
        width=width,
        inner=_first(config, "intermediate_size", "n_inner") or 4 * width,
        query=heads * head,
        key=(_first(config, "num_key_value_heads") or heads) * head,
        vocabulary=words,
        tied=bool(config.get("tie_word_embeddings", True)),
        lean=config.get("model_type") in LEAN,
    )


def architectures_of(source: str) -> tuple[str, ...]:
    """Classes that a model folder, or a hub id in the local cache, was saved from; none: not known."""
    folder = _folder(source)
    named = _json(folder / "config.json").get("architectures") if folder is not None else None
    return tuple(kind for kind in named if isinstance(kind, str)) if isinstance(named, list) else ()


def head_of(source: str) -> int | None:
    """Numbers in an attention head of a model folder, or of a hub id in the local cache; None: not known."""
    folder = _folder(source)
    config = _json(folder / "config.json") if folder is not None else {}
    return _head(config.get("text_config", config))


def parameters_of(source: str) -> int | None:
    """Parameters of a model folder, or of a hub id whose files lie in the local cache; None: not known."""
    folder = _folder(source)
    if folder is None:
        return None
    found = [math.prod(shape) for _, shape in _tensors(folder)]
    if found:
        return sum(found)
    weights = sorted(folder.glob("pytorch_model*.bin"))
    config = _json(folder / "config.json")
    kind = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if not weights or kind not in ITEM_BYTES:
        return None
    return sum(file.stat().st_size for file in weights) // ITEM_BYTES[kind]


def tensors_of(source: str) -> list[tuple[str, list[int]]]:
    """Names and shapes of a model folder's safetensors, or of a hub id's in the local cache; else none."""
    folder = _folder(source)
    return list(_tensors(folder)) if folder is not None else []


def _folder(source: str) -> Path | None:
    folder = Path(source).expanduser()
    return folder if folder.is_dir() else _cached(source)


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


def _head(config: Mapping[str, Any]) -> int | None:
    width = _first(config, "hidden_size", "n_embd")
    heads = _first(config, "num_attention_heads", "n_head")
    return _first(config, "head_dim") or (width // heads if width and heads else None)


def _first(config: Mapping[str, Any], *names: str) -> Any:
    """The first of some names that is set to a whole number, or None."""
    found = (config.get(name) for name in names)
    return next((value for value in found if isinstance(value, int)), None)


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
