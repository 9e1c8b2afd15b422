from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.util import placement_group_table
from sweep_runner import Runner


@pytest.fixture
def runner(ray_address: str, builtin_task: Path) -> Iterator[Runner]:
    yield Runner(ray_address)
    assert not ray.is_initialized(), "a sweep stayed connected"
    ray.init(address=ray_address, log_to_driver=False, configure_logging=False)
    try:
        left = [g for g in placement_group_table().values() if g["state"] != "REMOVED"]
        assert left == []
    finally:
        ray.shutdown()
