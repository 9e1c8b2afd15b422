"""DeepSpeed: optimiser, gradients and weights sharded over the ranks of a role (ZeRO).

DeepSpeed needs torch's default process group, so a process trains over the ranks of one role only; roles that are
alone in it share a group of one. Its optimiser is torch's AdamW, also for what lies in the host's memory: nothing
has to be compiled.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.config.deepspeed import engine_json
from rlhf_core.config.trial import TrialConfig
from rlhf_core.engines.base import shape_of, trained
from rlhf_core.engines.shards import Shard, flats_of, shard_of
from rlhf_core.engines.torch_engine import set_options
from rlhf_core.engines.world import enter_world, leave_world
from rlhf_core.errors import ConfigError, DivergedError, RankError
from rlhf_core.models.save import quiet_deepspeed
from rlhf_core.ranks import Ranks
from rlhf_core.types import AdamWSettings

WIDE_MOMENTS = ("exp_avg", "exp_avg_sq")
# In messages of a process group that broke off.
NETWORK = ("gloo", "NCCL", "timed out", "Connection")


class DeepSpeedEngine:
    """``deepspeed.initialize`` on one module.

    Args:
        config: The trial.
        role: Name of the role, for messages.
        module: Trained in place.
        group: The ranks of the role; all make their engine together.

    Raises:
        ConfigError: If DeepSpeed is not installed, or the process trains over other ranks already.
    """

    aligned = True

    def __init__(
        self, config: TrialConfig, role: str, module: nn.Module, group: Callable[[], Ranks]
    ) -> None:
        self.role, self.module, self._group = role, module, group
        self.stage = config.optim.zero_stage
        self.sharded = self.stage == 3
        device = next(module.parameters()).device
        deepspeed = import_deepspeed(device)
        ranks = group()
        enter_world(ranks, device)
        for part in module.modules():
            # Hooks of DeepSpeed gather weights when a module's own forward is called.
            part.own_forward = self.sharded
        self.optimizer = torch.optim.AdamW(trained(module).values(), lr=0.0, fused=True)
        # It prints how much memory is in use.
        with redirect_stdout(None):
            self._engine, *_ = deepspeed.initialize(
                model=_Caller(module),
                optimizer=self.optimizer,
                config=engine_json(config, ranks.size, _width(module)),
                dist_init_required=False,
            )
        self._gathered = deepspeed.zero.GatheredParameters

    def begin(self) -> None:
        self._engine.zero_grad()

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        with self._meeting():
            found: Tensor = self._engine(compute)
        return found

    def backward(self, compute: Callable[[], Tensor], *, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        with self._meeting():
            loss = self._engine(compute)
            # DeepSpeed averages over ranks; losses here are parts of one sum.
            self._engine.backward(loss * self._group().size)

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """Where another rank does not come, its own error says why; here it is one line."""
        try:
            yield
        except RuntimeError as error:
            ranks = self._group()
            if ranks.size == 1 or not any(word in str(error) for word in NETWORK):
                raise
            raise RankError(
                f"{self.role}: rank {ranks.rank} of {ranks.size} lost the others within a pass: a process ended, "
                "or none answered within half of sync.timeout_s"
            ) from error

    def used(self) -> list[bool]:
        return []

    def reduce(self, used: Sequence[bool]) -> None:
        """Done with the last pass."""

    def step(self, settings: AdamWSettings) -> float:
        set_options(self.optimizer, settings)
        limit, norm = settings.max_grad_norm, float("nan")
        if self.stage == 0:
            bound = float("inf") if limit is None else limit
            norm = float(nn.utils.clip_grad_norm_(self.module.parameters(), bound))
            if norm < float("inf"):
                self._engine.step()
        else:
            # It skips a step whose norm is not finite.
            self._engine.optimizer.clip_grad = limit or 0.0
            self._engine.step()
            norm = float(self._engine.get_global_grad_norm())
        if not norm < float("inf"):
            raise DivergedError(self.role, "gradient", f"has norm {norm}")
        return norm

    def whole(self, parameters: Iterable[nn.Parameter]) -> AbstractContextManager[None]:
        if not self.sharded:
            return nullcontext()
        gathered: AbstractContextManager[None] = self._gathered(list(parameters))
        return gathered

    def state(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        ranks, steps = self._group(), self._steps()
        for name, parameter in trained(self.module).items():
            shard, shape = self._shard(parameter), shape_of(parameter)
            tensors[f"model.{name}"] = shard.read(shard.flat, shape, ranks).cpu()
            if steps is not None:
                state = self.optimizer.state.get(shard.flat, {})
                if state:
                    tensors[f"optim.{name}.step"] = steps.clone()
                for key in WIDE_MOMENTS if state else ():
                    tensors[f"optim.{name}.{key}"] = shard.read(state[key], shape, ranks).cpu()
            if ranks.rank:
                # They are rank 0's to keep.
                tensors.clear()
        return tensors

    def _steps(self) -> Tensor | None:
        """Steps so far; None before the first."""
        states = list(self.optimizer.state.values())
        return states[0]["step"].detach().cpu() if states else None

    def _shard(self, parameter: nn.Parameter) -> Shard:
        return shard_of(self._engine.optimizer, self.stage, parameter, self._group().rank)

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor]) -> None:
        self.optimizer.state.clear()
        named = trained(self.module)
        steps = next(
            (tensors[f"optim.{n}.step"] for n in named if f"optim.{n}.step" in tensors), None
        )
        if steps is not None:
            for flat in flats_of(self._engine.optimizer, self.stage):
                moments = {key: torch.zeros_like(flat) for key in WIDE_MOMENTS}
                self.optimizer.state[flat] = {"step": steps.to(flat.device).clone(), **moments}
        for name, parameter in named.items():
            whole, shard = tensors[f"model.{name}"], self._shard(parameter)
            # Rank 0's is handed out where weights are sharded.
            keeps = self._gathered([parameter], modifier_rank=0) if self.sharded else nullcontext()
            with keeps:
                if parameter.numel():
                    parameter.data.copy_(whole)
            shard.write(shard.flat, whole)
            for key in WIDE_MOMENTS if f"optim.{name}.step" in tensors else ():
                shard.write(self.optimizer.state[shard.flat][key], tensors[f"optim.{name}.{key}"])

    def close(self) -> None:
        self._engine.destroy()
        for part in self.module.modules():
            part.own_forward = False
        leave_world()


class _Caller(nn.Module):
    """What DeepSpeed takes for the model: its forward is whatever is computed with the real one.

    Its hooks need an output that has a gradient, and hooks of the parts fire when these are called.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()


def _width(module: nn.Module) -> int:
    """Width of the hidden states of a policy or a critic."""
    config: Any = getattr(module, "trunk", module).config
    return int(config.get_text_config().hidden_size)


def import_deepspeed(device: torch.device) -> Any:
    """The package, told where tensors live.

    Raises:
        ConfigError: If it is not installed.
    """
    # It asks the environment what its own launcher would have set.
    os.environ.setdefault("LOCAL_RANK", "0")
    quiet_deepspeed(device)
    try:
        import deepspeed
    except ImportError as error:
        raise ConfigError(
            "optim.engine: 'deepspeed' is not installed; install it with pip install 'rlhf-sweeps[deepspeed]', "
            "or use 'torch'"
        ) from error
    deepspeed.utils.logger.setLevel(logging.ERROR)
    # It would compile a shared-memory sum for CPUs at its first start; gloo has one.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
