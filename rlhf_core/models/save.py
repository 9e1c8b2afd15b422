"""Writes a model as an ordinary Hugging Face folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def quiet_deepspeed(device: torch.device) -> None:
    """Tells DeepSpeed, where something imports it, which devices there are and to keep its log to itself."""
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if device.type == "cuda" else "cpu")
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")


def save_pretrained(
    model: Any, folder: str | Path, state_dict: Mapping[str, Tensor] | None = None
) -> None:
    """``model.save_pretrained``, with other weights where they are given."""
    # Through accelerate it imports DeepSpeed where that is installed, which prints on the standard output.
    quiet_deepspeed(next(model.parameters()).device)
    model.save_pretrained(folder, **({} if state_dict is None else {"state_dict": state_dict}))
