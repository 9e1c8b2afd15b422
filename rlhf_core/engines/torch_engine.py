"""Plain torch: one copy on every rank, gradients summed over the ranks after the passes of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from rlhf_core.engines.base import MOMENTS, trained
from rlhf_core.errors import DivergedError
from rlhf_core.ranks import Ranks
from rlhf_core.types import AdamWSettings

WIDE = (torch.float32, torch.float64)


class TorchEngine:
    """``torch.optim.AdamW``; 16-bit weights are copies of float32 ones, which the optimiser moves.

    Args:
        role: Name of the role, for messages.
        module: Trained in place.
        group: The ranks of the role, asked at every use.
    """

    aligned = sharded = False

    def __init__(self, role: str, module: nn.Module, group: Callable[[], Ranks]) -> None:
        self.role, self.module, self._group = role, module, group
        self._masters = {
            name: nn.Parameter(p.detach().float())
            for name, p in trained(module).items()
            if p.dtype not in WIDE
        }
        # What the optimiser moves, by the name of the parameter.
        self._moved = {name: self._masters.get(name, p) for name, p in trained(module).items()}
        # Settings are set again before every step, see step().
        self.optimizer = torch.optim.AdamW(self._moved.values(), lr=0.0, fused=True)

    def begin(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()

    def backward(self, compute: Callable[[], Tensor], *, last: bool) -> None:
        compute().backward()  # type: ignore[no-untyped-call]
        parameters = trained(self.module) if self._masters else {}
        for name, master in self._masters.items():
            # Passes add up in float32: sums of many would lose the small ones in 16 bits.
            grad, parameters[name].grad = parameters[name].grad, None
            if grad is not None:
                master.grad = grad.float() if master.grad is None else master.grad.add_(grad)

    def used(self) -> list[bool]:
        return [p.grad is not None for p in self._moved.values()]

    def reduce(self, used: Sequence[bool]) -> None:
        moved = list(self._moved.values())
        for parameter, is_used in zip(moved, used, strict=True):
            if is_used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._group().add([p.grad for p in moved if p.grad is not None])

    @torch.no_grad()
    def step(self, settings: AdamWSettings) -> float:
        limit = settings.max_grad_norm if settings.max_grad_norm is not None else float("inf")
        norm = float(nn.utils.clip_grad_norm_(self._moved.values(), limit))
        if not norm < float("inf"):
            raise DivergedError(self.role, "gradient", f"has norm {norm}")
        set_options(self.optimizer, settings)
        self.optimizer.step()
        self._write_back()
        return norm

    def _write_back(self) -> None:
        for name, parameter in trained(self.module).items() if self._masters else ():
            if name in self._masters:
                parameter.copy_(self._masters[name])

    def whole(self, parameters: Iterable[nn.Parameter]) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def state(self) -> dict[str, Tensor]:
        moved = self._moved
        tensors = {f"model.{name}": p.detach().cpu() for name, p in moved.items()}
        for name, parameter in moved.items():
            state = self.optimizer.state.get(parameter, {})
            tensors |= {f"optim.{name}.{key}": state[key].cpu() for key in MOMENTS if state}
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self._moved.items():
            parameter.copy_(tensors[f"model.{name}"])
            self.optimizer.state.pop(parameter, None)
            if f"optim.{name}.step" in tensors:
                self.optimizer.state[parameter] = {
                    key: tensors[f"optim.{name}.{key}"].to(parameter.device) for key in MOMENTS
                }
        self._write_back()

    def close(self) -> None:
        """Nothing to leave: the ranks are the role's."""


def set_options(optimizer: torch.optim.Optimizer, settings: AdamWSettings) -> None:
    """Everything but the limit of the norm."""
    for group in optimizer.param_groups:
        group["lr"] = settings.lr
        group["betas"] = (settings.beta1, settings.beta2)
        group["eps"] = settings.eps
        group["weight_decay"] = settings.weight_decay
