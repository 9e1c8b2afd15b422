"""What a configuration names as a model, checked without loading anything.

Imports neither torch nor transformers, so that bad input is refused before anything heavy starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rlhf_core.errors import ConfigError
from rlhf_core.models.gguf import is_gguf, problem_of_gguf
from rlhf_core.paths import user_path

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")
# Ends of names of transformers' classes.
_LANGUAGE = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_OTHER = re.compile(r"For(?!CausalLM|ConditionalGeneration)\w+$")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.safetensors.index.json")


def problem_of_model(
    source: str, key: str, *, tokenizer: bool = True, scores: bool = False
) -> str | None:
    """Why ``source`` can be no model, as one line, or None.

    Args:
        source: A folder, a hub id, or, for a language model, a GGUF file or the package that holds one.
        key: Configuration key; starts the line.
        tokenizer: Whether the folder needs a tokenizer as well.
        scores: Whether it is to be a sequence classifier rather than a language model.
    """
    if is_gguf(source):
        if scores:
            return (
                f"{key}: a GGUF file holds a language model, but {source!r} is to score responses; name the "
                "folder of a sequence classifier"
            )
        return problem_of_gguf(source, key)
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
        read = json.loads(config.read_text(encoding="utf-8"))
        kind = read.get("model_type")
    except (ValueError, OSError, AttributeError):
        return f"{key}: {config} cannot be read as JSON; save the model again"
    if not kind:
        return f"{key}: {config} names no model_type; save the model again with save_pretrained"
    other = _other_task(read, scores)
    if other is not None:
        return f"{key}: {source!r} {other}"
    if not any(any(path.glob(pattern)) for pattern in _WEIGHTS):
        return f"{key}: {source!r} holds no weights (*.safetensors); save the model again"
    files = ("tokenizer.json", "tokenizer_config.json")
    if tokenizer and not any((path / name).is_file() for name in files):
        return f"{key}: {source!r} holds no tokenizer; save it there with tokenizer.save_pretrained"
    return None


def _other_task(config: Mapping[str, Any], scores: bool) -> str | None:
    """What the class that the weights were saved from cannot do, as the tail of a line, or None."""
    named = config.get("architectures") or []
    kinds = [kind for kind in named if isinstance(kind, str)] if isinstance(named, list) else []
    if scores:
        wrong = [kind for kind in kinds if kind.endswith(_LANGUAGE)]
        return (
            f"is a {wrong[0]}, which gives no scores; name a sequence classifier" if wrong else None
        )
    if config.get("is_encoder_decoder"):
        return "is an encoder and a decoder, but a policy continues its prompt; name a causal model"
    wrong = [kind for kind in kinds if _OTHER.search(kind)]
    return (
        f"is a {wrong[0]}, which continues no text; name a causal language model" if wrong else None
    )
