"""What a trial keeps in the object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import Zoo
from tiny_rollouts import trial_config

from rlhf_core.config import TrialConfig, apply
from rlhf_core.models.size import parameters_of
from rlhf_core.runtime.object_store import MARGIN, STAGES, VERSIONS, store_need


def test_one_process_keeps_nothing(zoo: Zoo) -> None:
    need = store_need(trial_config(zoo))
    assert need is not None
    assert need.total == 0


def test_a_trial_of_several_processes_keeps_two_versions_and_a_batch(zoo: Zoo) -> None:
    config = trial_config(zoo, resources__layout="split", rollout__samples_per_prompt=2)
    need = store_need(config)
    assert need is not None
    parameters = parameters_of(zoo.policies["Llama"])
    assert need.weights == 4 * (parameters or 0) > 0
    assert need.total == MARGIN * (VERSIONS * need.weights + need.batch)
    half = store_need(apply(config, {"model.dtype": "bfloat16", "rollout.samples_per_prompt": 1}))
    assert half is not None
    assert half.weights * 2 == need.weights
    assert half.batch * 2 == need.batch


def test_batches_that_are_sampled_ahead_lie_there_too(zoo: Zoo) -> None:
    config = trial_config(zoo, resources__layout="split")
    sync = store_need(config)
    assert sync is not None
    assert (sync.versions, sync.ahead) == (VERSIONS, 0)
    for staleness, interval, versions in ((1, 1, 2), (3, 1, 4), (4, 2, 3)):
        changed = {"mode": "async", "max_staleness": staleness, "interval": interval}
        config = apply(config, {f"sync.{key}": value for key, value in changed.items()})
        need = store_need(config)
        assert need is not None
        assert need.versions == versions
        # What waits is only sampled; it is not scored and trained on as well.
        assert need.ahead * STAGES == config.batches_ahead * need.batch > 0
        assert need.total == MARGIN * (versions * need.weights + need.batch + need.ahead)


def test_nothing_is_built_or_downloaded_to_find_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_SWEEPS_CACHE", str(tmp_path))
    split = {"resources.layout": "split"}
    assert store_need(apply(TrialConfig(), {**split, "data.task": "builtin:reviews"})) is None
    assert store_need(apply(TrialConfig(), {**split, "model.policy": "nobody/has-this"})) is None
    assert list(tmp_path.iterdir()) == []
