"""Shape and mask checks at the entry of every function, and the one rule for precision.

Legend of this package: B sequences, T response tokens, V vocabulary. One mask,
``response_mask_BT``: bool, True = this token counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_core.errors import ConfigError, nearest


def check_shape(name: str, x: Tensor, legend: str) -> None:
    """Raise ValueError unless ``x`` has one dimension for each letter of ``legend``."""
    if x.dim() != len(legend):
        raise ValueError(
            f"{name} must have shape [{', '.join(legend)}], got {list(x.shape)}; "
            "reshape it before the call"
        )


def check_batch(mask_BT: Tensor, **tensors_BT: Tensor) -> None:
    """Raise ValueError unless the mask is bool of shape [B, T], T > 0, and all shapes agree."""
    check_shape("mask_BT", mask_BT, "BT")
    if mask_BT.dtype != torch.bool:
        raise ValueError(
            f"mask_BT must be bool with True = this token counts, got {mask_BT.dtype}; "
            "compare or convert it before the call"
        )
    if mask_BT.shape[1] == 0:
        raise ValueError(
            f"mask_BT must have T > 0, got {list(mask_BT.shape)}; "
            "skip the call where no response has a token"
        )
    check_same_shape(mask_BT=mask_BT, **tensors_BT)


def check_same_shape(**tensors: Tensor) -> None:
    """Raise ValueError unless all tensors have the shape of the first."""
    (first, reference), *others = tensors.items()
    for name, x in others:
        if x.shape != reference.shape:
            raise ValueError(
                f"{name} must have the shape of {first}, got {list(x.shape)} and "
                f"{list(reference.shape)}; pad or slice one of them"
            )


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Raise ConfigError unless ``value`` is one of ``known``."""
    if value not in known:
        raise ConfigError(
            f"{name} must be one of {list(known)}, got {value!r}"
            f"{nearest(value, known) or '; use one of these'}"
        )


def check_groups(scores_B: Tensor, groups_B: Tensor) -> None:
    """Raise ValueError unless there is one integer group id for each score."""
    check_shape("scores_B", scores_B, "B")
    check_same_shape(scores_B=scores_B, groups_B=groups_B)
    if groups_B.dtype != torch.int64:
        raise ValueError(
            f"groups_B must be int64 with one id for each prompt, got {groups_B.dtype}; "
            "convert it before the call"
        )


def statistic_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if an input is float64, else float32: statistics in half precision lose tokens."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def select(x_BT: Tensor, mask_BT: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """``x_BT`` in ``dtype`` with zeros outside the mask, whatever stood there.

    Selection and not multiplication: padding may hold inf or NaN, and 0 * inf is NaN.
    """
    x_BT = x_BT.to(dtype or statistic_dtype(x_BT))
    return torch.where(mask_BT, x_BT, torch.zeros((), dtype=x_BT.dtype, device=x_BT.device))
