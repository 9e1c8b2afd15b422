"""When a parameter counts: only while another one has one of a few values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.domains import Scalar, same, scalars
from search_spaces.errors import SpaceError


@dataclass(frozen=True, slots=True)
class When:
    """Makes its owner active only while the parameter ``key`` is active and has one of ``values``.

    Args:
        key: Dotted key of the parent, a parameter of the same space.
        values: At least one value, no two the same.

    Raises:
        SpaceError: A rule above is broken.
    """

    key: str
    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not self.key:
            raise SpaceError(
                f"a condition needs the dotted key of a parameter, got {self.key!r}; "
                "write when: {some.key: value}"
            )
        object.__setattr__(self, "values", scalars(self.values, f"the condition on {self.key!r}"))

    def holds(self, value: object) -> bool:
        """Whether the parent's ``value`` activates the owner."""
        return any(same(value, v) for v in self.values)


def parents_first(parents: Mapping[str, str | None]) -> tuple[str, ...]:
    """Keys in the given order, except that a parent is moved before its first child.

    Args:
        parents: Key to the key of its parent, or None. Parents that are not keys are ignored.

    Raises:
        SpaceError: Conditions form a cycle; the message names its members.
    """
    order: dict[str, None] = {}
    for key in parents:
        chain: list[str] = []
        current: str | None = key
        while current is not None and current in parents and current not in order:
            if current in chain:
                cycle = [*chain[chain.index(current) :], current]
                raise SpaceError(
                    f"conditions must not form a cycle, got {' -> '.join(cycle)}; "
                    "remove one `when` of these"
                )
            chain.append(current)
            current = parents[current]
        order.update(dict.fromkeys(reversed(chain)))
    return tuple(order)
