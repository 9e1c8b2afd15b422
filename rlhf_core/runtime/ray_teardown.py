"""Waits, on every node, until the processes of a trial are gone: Ray counts their devices as free earlier.

Imports little: it is loaded by a worker on each node that held a part of the trial.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.exceptions import ObjectLostError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlhf_core.errors import RankError
from rlhf_core.node_files import sweep

GONE_TIMEOUT_S = 6.0
# A process died, or its node with what it had computed, or the network between ranks failed. A rank's own
# error arrives as itself.
LOST = (RayActorError, ObjectLostError, RankError)


@dataclass(frozen=True)
class Process:
    """A process of a node; its number alone may be another's by now.

    Attributes:
        node: Ray's id of the node.
        pid: Its number.
        born: When it began, as ``psutil`` tells.
    """

    node: str
    pid: int
    born: float

    @classmethod
    def this(cls) -> Process:
        node: str = ray.get_runtime_context().get_node_id()
        return cls(node, psutil.Process().pid, psutil.Process().create_time())

    def find(self) -> psutil.Process | None:
        """The process on this node, or None where it is gone."""
        try:
            found = psutil.Process(self.pid)
            same = found.create_time() == self.born and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return found if same else None


class Departure:
    """Watches processes go. Made before they are ended, so that watchers on other nodes start meanwhile.

    Args:
        processes: Those to watch, on whichever nodes.
    """

    def __init__(self, processes: Iterable[Process]) -> None:
        here: str = ray.get_runtime_context().get_node_id()
        nodes: dict[str, list[Process]] = {}
        for process in processes:
            nodes.setdefault(process.node, []).append(process)
        self._here = nodes.pop(here, [])
        watcher = ray.remote(num_cpus=0, max_retries=0)(watch)
        self._elsewhere: list[Any] = [
            watcher.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                there, GONE_TIMEOUT_S
            )
            for node, there in nodes.items()
        ]  # fmt: skip

    def wait(self) -> list[Process]:
        """Returns when all are gone, or those that still live after ``GONE_TIMEOUT_S``."""
        deadline = time.monotonic() + GONE_TIMEOUT_S
        left = watch(self._here, GONE_TIMEOUT_S)
        for ref in self._elsewhere:
            try:
                left += ray.get(ref, timeout=max(0.0, deadline - time.monotonic()))
            except RayError:
                # A node that is gone took its processes with it; one that does not answer is not waited for.
                ray.cancel(ref, force=True)
        return left


def watch(processes: Sequence[Process], timeout_s: float) -> list[Process]:
    """Returns when the processes of this node are gone, and their files; halfway it kills those that do not go.

    Args:
        processes: All of this node.
        timeout_s: Longest wait.

    Returns:
        Those that still live.
    """
    start, killed = time.monotonic(), False
    while True:
        left = [(process, found) for process in processes if (found := process.find()) is not None]
        spent = time.monotonic() - start
        if not left or spent > timeout_s:
            sweep()
            return [process for process, _ in left]
        if spent > timeout_s / 2 and not killed:
            killed = True
            for _, found in left:
                found.kill()
        time.sleep(0.01)
