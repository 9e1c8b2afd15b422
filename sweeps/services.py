"""Services of a sweep as its driver and its plan see them. Ray is in ``tuning/services.py``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from rlhf_core.errors import ConfigError, PlacementError
from rlhf_core.runtime.placement import Node, PlacementPlan, assign, shortfall
from rlhf_core.runtime.shared import SharedRole
from sweeps.load import Loaded


class Services(Protocol):
    """What serves the roles that trials share."""

    def seats(self, asked: Sequence[SharedRole], trial: PlacementPlan) -> dict[str, dict[str, Any]]:
        """Where a trial finds its services, as ``TrialContext.services``; what is not there yet is started.

        Args:
            asked: The roles.
            trial: The trial's own placement, which must still fit beside them.

        Raises:
            ConfigError: A model cannot be read, or the nodes do not hold the service beside the others.
        """
        ...

    def room(self, nodes: Sequence[Node]) -> list[Node]:
        """What the services leave of ``nodes``."""
        ...

    def watch(self, now: float) -> None:
        """Looks after the replicas; called often, returns at once."""
        ...


class NoServices:
    """Of a sweep without shared roles."""

    def seats(self, asked: Sequence[SharedRole], trial: PlacementPlan) -> dict[str, dict[str, Any]]:
        if asked:
            role = asked[0].role
            raise PlacementError(
                f"resources.roles.{role}.placement: nobody serves 'shared' roles here; use 'trial'"
            )
        return {}

    def room(self, nodes: Sequence[Node]) -> list[Node]:
        return list(nodes)

    def watch(self, now: float) -> None:
        return None


def asked_at_corners(loaded: Loaded) -> list[SharedRole]:
    """The services that trials at the corners of the space ask for, equally named ones once."""
    points = [*loaded.config.search.points, *loaded.corners]
    found: dict[str, SharedRole] = {}
    for point in points:
        # A trial that is refused asks for nothing.
        with contextlib.suppress(ConfigError):
            found |= {s.key: s for s in loaded.program.services(loaded.base, point)}
    return list(found.values())


def left(nodes: Sequence[Node], plans: Iterable[PlacementPlan]) -> list[Node]:
    """What the placed plans leave of ``nodes``; a plan that fits nowhere takes nothing."""
    rest = list(nodes)
    for plan in plans:
        for bundle, index in zip(plan.bundles, assign(plan, rest) or (), strict=False):
            rest[index] = rest[index].without(bundle)
    return rest


def refusal(shared: SharedRole, nodes: Sequence[Node], trial: PlacementPlan | None) -> str | None:
    """Why ``nodes`` do not hold the service, or no trial beside it; in a line, or None.

    Args:
        shared: The service.
        nodes: What those that run leave.
        trial: The trial that asks, or None where only the service counts.
    """
    lack = shortfall(shared.plan, nodes)
    if lack is None and trial is not None:
        lack = shortfall(trial, left(nodes, [shared.plan]))
    if lack is None:
        return None
    return f"placement: service for the shared {shared.role}: {lack.removeprefix('placement: ')}"
