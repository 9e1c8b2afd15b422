"""Fixtures of the tests that need a CUDA device; `make test-gpu` runs them where there is one."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Zoo, build


@pytest.fixture(scope="session")
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return build(tmp_path_factory.mktemp("zoo"))
