"""Tiny models for the tests of roles and trials."""

from __future__ import annotations

import pytest
from tiny_models import Zoo, build


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return build(tmp_path_factory.mktemp("zoo"))
