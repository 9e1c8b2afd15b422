"""Idle trial processes: how many are kept, and when they make room."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_driver import LARGE, SMALL, make, started
from ray.tune import PlacementGroupFactory

from rlhf_core.runtime.placement import Node
from sweeps.driver import ClusterView
from sweeps.tuning.idle import PATIENCE_S, IdleShapes, IdleWatch

SHAPES = {name: PlacementGroupFactory([{"CPU": i + 1.0}]) for i, name in enumerate("abcd")}
BUSY = Node("large", 8.0, 0.0, 8.0)


def kept(most: int, *names: str) -> IdleShapes:
    """A cache of idle processes that are named after their shape, ``a`` or ``a2``."""
    cache = IdleShapes(most)
    for name in names:
        assert cache.cache_object(SHAPES[name[0]], name)
    return cache


def test_those_idle_for_longest_go_first_and_as_many_as_there_are_too_many() -> None:
    cache = kept(2, "a", "b", "c", "a2")
    assert list(cache.flush_cached_objects()) == ["a", "b"]
    assert list(cache.flush_cached_objects()) == []
    assert [cache.has_cached_object(SHAPES[name]) for name in "abc"] == [True, False, True]
    assert cache.num_cached_objects == 2
    assert list(cache.flush_cached_objects(force_all=True)) == ["c", "a2"]
    assert cache.num_cached_objects == 0


def test_what_a_trial_will_take_stays_and_what_it_took_is_not_idle() -> None:
    cache = kept(1, "a", "b", "b2")
    cache.increase_max(SHAPES["a"])
    assert list(cache.flush_cached_objects()) == ["b", "b2"]
    assert cache.pop_cached_object(SHAPES["a"]) == "a"
    assert cache.pop_cached_object(SHAPES["b"]) is None
    assert cache.num_cached_objects == 0
    assert cache.held == {}


def test_one_makes_room_at_a_time() -> None:
    cache = kept(3, "a", "b", "c")
    cache.make_room()
    assert list(cache.flush_cached_objects()) == ["a"]
    assert list(cache.flush_cached_objects()) == []


def test_what_is_held_is_told_in_the_units_of_plans() -> None:
    cache = IdleShapes(2)
    cache.cache_object(
        PlacementGroupFactory(
            [{"CPU": 0.1}, {"CPU": 2, "GPU": 0.5, "memory": 3 * 10**9, "tpu": 1}]
        ),
        "x",
    )
    assert cache.held == pytest.approx({"CPUs": 2.1, "GPUs": 0.5, "GB memory": 3.0, "tpu": 1.0})


def watched(tmp_path: Path, *names: str) -> tuple[IdleWatch, IdleShapes, Any, str]:
    """A watch over idle processes, its cache, the driver, and a trial of it that wants a GPU."""
    driver, watch = make(tmp_path), IdleWatch()
    controller = SimpleNamespace(_actor_cache=None)
    watch.install(SimpleNamespace(_tune_controller=controller), 3)
    cache = controller._actor_cache
    for name in names:
        cache.cache_object(SHAPES[name], name)
    watch.install(controller, 3)
    assert controller._actor_cache is cache
    return watch, cache, driver, started(driver)


def view(free: Node, live: Node = LARGE, asked: bool = True) -> ClusterView:
    return ClusterView(
        [SMALL, live], [SMALL, free], [SMALL, live], [[{"CPU": 1.0, "GPU": 1.0}]] * asked
    )


def test_idle_processes_make_room_one_after_the_other_where_a_trial_has_none(
    tmp_path: Path,
) -> None:
    watch, cache, driver, trial = watched(tmp_path, "a", "b", "c")
    ended = []
    for now in (0.0, 0.5, 1.5, 2.0, 2.5, 4.0):
        watch.look(driver, [trial], lambda: view(BUSY), now)
        ended.append(list(cache.flush_cached_objects()))
    # Between two the first one's place is to become free.
    assert ended == [["a"], [], [], ["b"], [], ["c"]]
    watch.look(driver, [trial], lambda: view(BUSY), 9.0)
    assert driver.idle == {}


@pytest.mark.parametrize(
    "seen", [view(LARGE, asked=False), view(BUSY, live=BUSY)], ids=["placed", "no such node"]
)
def test_idle_processes_stay_where_their_end_would_help_nobody(
    tmp_path: Path, seen: ClusterView
) -> None:
    watch, cache, driver, trial = watched(tmp_path, "a")
    for now in (0.0, 1.0, 100.0):
        watch.look(driver, [trial], lambda: seen, now)
        assert list(cache.flush_cached_objects()) == []
    assert driver.idle == {"CPUs": 1.0}


def test_a_trial_that_ray_does_not_place_gets_room_in_the_end(tmp_path: Path) -> None:
    """By the sums of the free nodes it has a place, but waits."""
    watch, cache, driver, trial = watched(tmp_path, "a")
    for now in (0.0, PATIENCE_S - 0.5):
        watch.look(driver, [trial], lambda: view(LARGE), now)
        assert list(cache.flush_cached_objects()) == []
    watch.look(driver, [trial], lambda: view(LARGE), PATIENCE_S)
    assert list(cache.flush_cached_objects()) == ["a"]


def test_the_cluster_is_not_asked_where_nothing_is_idle_or_waits(tmp_path: Path) -> None:
    def never() -> ClusterView:
        raise AssertionError("asked")

    watch, cache, driver, trial = watched(tmp_path)
    watch.look(driver, [trial], never, 0.0)
    cache.cache_object(SHAPES["a"], "a")
    watch.look(driver, [], never, 1.0)
    assert driver.idle == {"CPUs": 1.0}
