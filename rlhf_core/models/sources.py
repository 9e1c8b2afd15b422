"""What a configuration names as a model, checked without loading anything.

Imports neither torch nor transformers, so that bad input is refused before anything heavy starts.
"""

from __future__ import annotations

import json
import re

from rlhf_core.errors import ConfigError
from rlhf_core.paths import user_path

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.safetensors.index.json")


def problem_of_model(source: str, key: str, *, tokenizer: bool = True) -> str | None:
    """Why ``source`` can be no model, as one line, or None.

    Args:
        source: A folder or a hub id.
        key: Configuration key; starts the line.
        tokenizer: Whether the folder needs a tokenizer as well.
    """
    try:
        path = user_path(source, key)
    except ConfigError as error:
        return str(error)
    if not path.exists():
        looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1
        if looks_like_path or not _HUB_ID.match(source):
            return f"{key}: no folder {source!r}; name a Hugging Face folder or a hub id"
        return None
    if not path.is_dir():
        return f"{key}: a model is a folder, but {source!r} is a file"
    config = path / "config.json"
    if not config.is_file():
        return (
            f"{key}: {source!r} is no Hugging Face model: it has no config.json; save one there "
            "with save_pretrained"
        )
    try:
        kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, OSError, AttributeError):
        return f"{key}: {config} cannot be read as JSON; save the model again"
    if not kind:
        return f"{key}: {config} names no model_type; save the model again with save_pretrained"
    if not any(any(path.glob(pattern)) for pattern in _WEIGHTS):
        return f"{key}: {source!r} holds no weights (*.safetensors); save the model again"
    files = ("tokenizer.json", "tokenizer_config.json")
    if tokenizer and not any((path / name).is_file() for name in files):
        return f"{key}: {source!r} holds no tokenizer; save it there with tokenizer.save_pretrained"
    return None
