"""Hugging Face folders or hub ids -> modules and tokenizers. The only ``from_pretrained`` calls of a trial."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.errors import ConfigError
from rlhf_core.models.warm import from_shelf, kept, stamp

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pick_device(name: str, gpus: float) -> torch.device:
    """The device of a process that was given ``gpus`` GPUs."""
    if name == "cpu" or (name == "auto" and (gpus == 0 or not torch.cuda.is_available())):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "model.device: 'cuda' needs a CUDA device, but torch sees none; use 'auto'"
        )
    return torch.device("cuda")


def check_dtype(dtype: str, device: torch.device) -> None:
    """Refuses a type that the device does not compute in.

    Raises:
        ConfigError: It does not.
    """
    if device.type != "cuda" or dtype != "bfloat16":
        return
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise ConfigError(
            f"model.dtype 'bfloat16' needs a GPU of compute capability 8.0 or more, but {name} has "
            f"{'.'.join(map(str, torch.cuda.get_device_capability(device)))}; use 'float32'"
        )


def _quiet() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def from_pretrained(auto: str, source: str, key: str, **options: Any) -> Any:
    """``transformers.AUTO.from_pretrained(source, ...)`` without bars and warnings.

    Raises:
        ConfigError: It cannot be loaded; the line starts with ``key``.
    """
    import transformers

    _quiet()
    try:
        return getattr(transformers, auto).from_pretrained(source, **options)
    except MemoryError:
        raise
    # Shapes that do not fit are a RuntimeError, damaged weights an error class of safetensors.
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        first = lines[0]
        if "ignore_mismatched_sizes" in first:
            first = "its weights have other shapes than asked for; a reward model has one label"
        raise ConfigError(f"{key}: {source!r} cannot be loaded with {auto}: {first}") from error


def _load_model(auto: str, source: str, key: str, **options: Any) -> nn.Module:
    """A model whose weights are all in ``source``: transformers makes up those that are not."""
    model: nn.Module
    model, info = from_pretrained(auto, source, key, output_loading_info=True, **options)
    if info["missing_keys"]:
        names = ", ".join(sorted(info["missing_keys"])[:3])
        kind = ", ".join(getattr(model.config, "architectures", None) or ["unknown"])
        raise ConfigError(
            f"{key}: {source!r} ({kind}) lacks weights that {auto} needs: {names}; name a model "
            "that was trained as one"
        )
    return model


def load_tokenizer(source: str, key: str = "model.policy") -> Any:
    """The tokenizer of ``source``; one without padding pads with its end-of-sequence token."""
    return kept(("tokenizer", stamp(source), key), lambda: _tokenizer(source, key))


def _tokenizer(source: str, key: str) -> Any:
    tokenizer = from_pretrained("AutoTokenizer", source, key)
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"{key}: the tokenizer of {source!r} has no end-of-sequence token; set one"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Equal for tokenizers that turn every text into the same tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        state.pop("padding", None)
        state.pop("truncation", None)
        text = json.dumps(state, sort_keys=True)
    else:
        text = json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def load_policy(
    source: str, dtype: str, device: torch.device, key: str = "model.policy"
) -> nn.Module:
    """A causal language model in evaluation mode (dropout off, in training as well)."""

    def read(device: torch.device) -> nn.Module:
        model = _load_model("AutoModelForCausalLM", source, key, dtype=DTYPES[dtype])
        return model.to(device).eval()

    return from_shelf(("policy", stamp(source), dtype), device, read)


def load_classifier(source: str, dtype: str, device: torch.device, key: str) -> nn.Module:
    """A sequence classifier with one label, in evaluation mode."""

    def read(device: torch.device) -> nn.Module:
        model = _load_model(
            "AutoModelForSequenceClassification", source, key, dtype=DTYPES[dtype], num_labels=1
        )
        return model.to(device).eval()

    return from_shelf(("classifier", stamp(source), dtype), device, read)


def positions(model: nn.Module) -> int | None:
    """Longest sequence the model has positions for, or None where it names no limit."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit else None


def trunk_and_head(classifier: nn.Module) -> tuple[nn.Module, nn.Linear] | None:
    """Trunk and linear head of a decoder classifier, or None for another architecture."""
    head = getattr(classifier, "score", None)
    trunk = getattr(classifier, getattr(classifier, "base_model_prefix", ""), None)
    if isinstance(head, nn.Linear) and isinstance(trunk, nn.Module):
        return trunk, head
    return None


class ValueModel(nn.Module):
    """A decoder trunk with a linear value head on every position."""

    def __init__(self, trunk: nn.Module, head: nn.Linear, bias: float = 0.0) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(head.in_features, 1, bias=True).to(head.weight)
        with torch.no_grad():
            self.head.weight.copy_(head.weight)
            self.head.bias.fill_(bias)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Values of every position, float32 [B, L]."""
        hidden = self.trunk(input_ids=tokens_BL, use_cache=False).last_hidden_state
        return self.head(hidden).squeeze(-1).float()


def load_critic(
    reward: str | None, policy: str, dtype: str, device: torch.device, bias: float = 0.0
) -> ValueModel:
    """The critic: trunk and head of the reward model, or the policy's trunk with a zero head."""
    sources = (stamp(policy), None if reward is None else stamp(reward))
    return from_shelf(
        ("critic", *sources, dtype, bias),
        device,
        lambda device: make_critic(reward, policy, dtype, device, bias),
    )


def make_critic(
    reward: str | None,
    policy: str,
    dtype: str,
    device: torch.device,
    bias: float = 0.0,
    through: Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]] = lambda load: load,
) -> ValueModel:
    """``load_critic`` that is not kept; ``through`` wraps the functions that load its source."""
    if reward is not None:
        classifier = through(load_classifier)(reward, dtype, device, "reward.model")
        parts = trunk_and_head(classifier)
        if parts is not None:
            return ValueModel(*parts, bias=bias).to(device).eval()
    model: Any = through(load_policy)(policy, dtype, device)
    trunk = getattr(model, model.base_model_prefix)
    size = model.config.get_text_config().hidden_size
    head = nn.Linear(size, 1).to(device=device, dtype=DTYPES[dtype])
    nn.init.zeros_(head.weight)
    return ValueModel(trunk, head).to(device).eval()
