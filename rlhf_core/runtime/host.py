"""A process that hosts roles: builds them from a ``TrialConfig`` and answers calls. No Ray."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from rlhf_core.assets import Assets
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import RlhfError
from rlhf_core.models.load import check_dtype, pick_device
from rlhf_core.models.warm import Shelf
from rlhf_core.roles.build import build_role
from rlhf_core.runtime.allocator import keep_freed_memory
from rlhf_core.types import CallContext

# Loading a model switches the process's default type for a moment.
_LOADING = threading.Lock()


class RoleHost:
    """Roles in this process.

    Args:
        config: The trial whose models and threads the process uses.
        roles: Roles to host; each is built at its first call.
        gpus: GPUs the process was given.
        assets: What the roles read; None: what ``config`` names.
        shelf: Where models stay from one trial to the next; None: nothing stays.
    """

    def __init__(
        self,
        config: TrialConfig,
        roles: Sequence[str],
        gpus: float = 0.0,
        assets: Assets | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self.names, self.gpus, self.assets, self.shelf = tuple(roles), gpus, assets, shelf
        self._roles: dict[str, Any] = {}
        self._busy: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._begin(config)

    def _begin(self, config: TrialConfig) -> None:
        self.config = config
        self.device = pick_device(config.model.device, self.gpus)
        check_dtype(config.model.dtype, self.device)
        torch.set_num_threads(config.resources.threads)
        keep_freed_memory()
        if self.device.type == "cuda" and 0 < self.gpus < 1:
            # Ray counts shares of a GPU, but lets each process take all of its memory.
            torch.cuda.set_per_process_memory_fraction(self.gpus, self.device)

    def reset(self, config: TrialConfig, checks: bool = False) -> None:
        """Begins another trial: every role is made anew, with the models of the last one where it had them.

        Args:
            config: The trial.
            checks: Compares the models that were kept with ones that are read again.

        Raises:
            WarmError: If one of them is another.
        """
        assert self.shelf is not None, "a host without a shelf keeps nothing"
        built = tuple(self._roles)
        self._end_roles()
        self._busy.clear()
        self.shelf.collect(checks)
        self._begin(config)
        for name in built:
            self.role(name)
        self.shelf.drop_idle()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def role(self, name: str) -> Any:
        """The role object ``name``."""
        if name not in self.names:
            raise RlhfError(f"host: this process hosts {', '.join(self.names)}, not {name!r}")
        if name not in self._roles:
            with _LOADING, self.shelf.open(name) if self.shelf else contextlib.nullcontext():
                self._roles[name] = build_role(name, self.config, self.device, self.assets)
        return self._roles[name]

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Any:
        """Calls ``method`` of ``role`` and accounts its time to the caller."""
        target = self.role(role)
        start = time.perf_counter()
        try:
            return getattr(target, method)(context, *args)
        finally:
            self._busy[context.caller][role] += time.perf_counter() - start

    def hand_over(self, context: CallContext) -> int:
        """Loads the learner's weights into the rollout role; returns the bytes."""
        header, buckets = self.call("learner", "publish", context)
        self.call("rollout", "load_weights", context, header, buckets)
        return int(header.nbytes)

    def usage(self, caller: str) -> dict[str, float]:
        """Busy seconds by role for ``caller`` since it last asked; those of others stay."""
        return dict(self._busy.pop(caller, {}))

    def close(self) -> None:
        """Frees what roles hold besides memory (worker pools), and what was kept for another trial."""
        self._end_roles()
        if self.shelf is not None:
            self.shelf.close()
            self.shelf = None

    def _end_roles(self) -> None:
        for role in self._roles.values():
            role.close()
        self._roles.clear()
