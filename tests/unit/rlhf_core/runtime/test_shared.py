"""What a shared role is: equal for trials that would read the same, and another for every other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_models import Zoo
from tiny_rollouts import trial_config

from rlhf_core.config import TrialConfig
from rlhf_core.errors import ConfigError
from rlhf_core.models.content import digest
from rlhf_core.runtime.placement import plan_service, plan_trial
from rlhf_core.runtime.shared import reduced, shared_roles

SHARED = {
    "resources__layout": "split",
    "resources__roles__reference__placement": "shared",
    "resources__roles__reward__placement": "shared",
}


def _config(zoo: Zoo, **values: Any) -> TrialConfig:
    return trial_config(zoo, **{**SHARED, "reward.model": zoo.rewards["same"], **values})


def _prints(config: TrialConfig) -> dict[str, str]:
    return {shared.role: shared.order.fingerprint for shared in shared_roles(config)}


def _moved(zoo: Zoo, **values: Any) -> set[str]:
    """Roles that get another service by these options."""
    before, after = _prints(_config(zoo)), _prints(_config(zoo, **values))
    return {role for role in before if before[role] != after[role]}


def test_no_bundle_of_a_trial_is_for_a_shared_role(zoo: Zoo) -> None:
    plan = plan_trial(_config(zoo))
    owners = [bundle.owner for bundle in plan.bundles]
    assert owners == ["head", "rollout 0", "rollout 1", "learner 0", "critic 0"]
    fused = plan_trial(_config(zoo, resources__layout="fused"))
    assert fused.workers[0].roles == ("rollout", "learner", "critic")
    colocated = plan_trial(_config(zoo, resources__layout="colocated"))
    assert [bundle.owner for bundle in colocated.bundles] == [
        "head",
        "rollout+learner 0",
        "critic 0",
    ]


def test_a_service_has_a_bundle_for_each_replica(zoo: Zoo) -> None:
    config = _config(
        zoo,
        resources__roles__reward__workers=3,
        resources__roles__reward__labels={"zone": "a"},
        resources__cpus_per_gpu=16.0,
    )
    plan = plan_service(config.resources, "reward")
    assert [(b.owner, b.cpus, b.gpus) for b in plan.bundles] == [
        (f"reward {i}", 2.0, 1.0) for i in range(3)
    ]
    assert plan.bundles[0].labels == (("zone", "a"),)
    assert [worker.bundle for worker in plan.workers] == [0, 1, 2]


def test_roles_that_the_algorithm_does_not_use_are_not_asked_for(zoo: Zoo) -> None:
    config = _config(zoo, ppo__kl__coef=0.0, ppo__kl__measure=False)
    assert [shared.role for shared in shared_roles(config)] == ["reward"]
    assert shared_roles(trial_config(zoo)) == ()


BOTH = {"reference", "reward"}


@pytest.mark.parametrize(
    ("values", "moves"),
    [
        ({"seed": 3}, set()),
        ({"optim__policy__lr": 1e-5}, set()),
        ({"ppo__kl__coef": 0.3}, set()),
        ({"reward__weight": 2.0}, set()),
        ({"reward__clip": 1.0}, set()),
        ({"resources__cpus_per_gpu": 8.0}, set()),
        ({"resources__roles__learner__workers": 2}, set()),
        ({"rollout__temperature": 0.5}, set()),
        ({"model__dtype": "bfloat16"}, BOTH),
        ({"model__device": "cpu"}, BOTH),
        ({"optim__micro_batch_size": 2}, BOTH),
        ({"optim__micro_batch_tokens": 64}, BOTH),
        ({"resources__threads": 2}, BOTH),
        ({"resources__roles__reference__merge": True}, {"reference"}),
        ({"resources__roles__reward__gpus": 0.0}, {"reward"}),
        ({"model__reference": "{other}"}, {"reference"}),
        ({"model__policy": "{other}", "model__reference": "{own}"}, {"reward"}),
        ({"data__chat_template": "off"}, {"reward"}),
        ({"reward__offset": 1.0}, {"reward"}),
        ({"reward__heldout_function": "core_rewards:length"}, {"reward"}),
        ({"reward.extra.length.function": "core_rewards:length"}, {"reward"}),
    ],
    ids=lambda given: str(sorted(given)) if isinstance(given, set) else str(given),
)
def test_what_changes_numbers_changes_the_service(
    zoo: Zoo, values: dict[str, Any], moves: set[str]
) -> None:
    places = {"other": zoo.policies["GPT2"], "own": zoo.policies["Llama"]}
    named = {k: v.format(**places) if isinstance(v, str) else v for k, v in values.items()}
    assert _moved(zoo, **named) == moves


def test_a_service_reads_nothing_that_its_fingerprint_leaves_out(zoo: Zoo) -> None:
    """Every option is either in the reduced configuration or at its default there."""
    config = _config(zoo, seed=7, reward__clip=1.0, optim__policy__lr=1e-4)
    default = TrialConfig().model_dump()
    for role in BOTH:
        kept = reduced(role, config).model_dump()
        for key in ("seed", "ppo", "rollout", "eval", "budget", "checkpoint", "sync"):
            assert kept[key] == default[key]
        assert kept["reward"]["clip"] is None
        assert kept["optim"]["policy"] == default["optim"]["policy"]


def test_another_server_is_another_service(zoo: Zoo) -> None:
    named = {"reward.extra.style.url": "http://scores:1/x"}
    before, after = (
        _prints(_config(zoo, **v)) for v in (named, {"reward.extra.style.url": "http://scores:2/x"})
    )
    assert {role for role in before if before[role] != after[role]} == {"reward"}
    again = _prints(_config(zoo, **named, reward__url_batch_size=9))
    assert {role for role in before if before[role] != again[role]} == {"reward"}


def test_content_counts_and_not_the_place(zoo: Zoo, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(zoo.rewards["same"], copy)
    assert _moved(zoo, **{"reward.model": str(copy)}) == set()
    before = digest(str(copy), "reward.model")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    assert digest(str(copy), "reward.model") != before
    assert _moved(zoo, **{"reward.model": str(copy)}) == {"reward"}


def test_weights_are_left_out_where_only_the_tokenizer_counts(tmp_path: Path, zoo: Zoo) -> None:
    copy = tmp_path / "policy"
    shutil.copytree(zoo.policies["Llama"], copy)
    whole, light = (digest(str(copy), "k", weights=w) for w in (True, False))
    (copy / "model.safetensors").write_bytes(b"others")
    assert digest(str(copy), "k") != whole
    assert digest(str(copy), "k", weights=False) == light


def test_a_hub_id_is_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    cached = tmp_path / "snapshots" / "c0ffee" / "config.json"
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: str(cached))
    assert digest("someone/model", "k") == "someone/model@c0ffee"
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    with pytest.raises(ConfigError, match=r"reward.model: the revision of 'someone/model' must be"):
        digest("someone/model", "reward.model")


def test_options_that_count_for_nothing_are_refused(zoo: Zoo) -> None:
    with pytest.raises(ConfigError, match=r"reference.merge True has no effect"):
        trial_config(zoo, resources__roles__reference__merge=True)
    with pytest.raises(ConfigError, match=r"reward.share 0.5 has no effect"):
        _config(zoo, resources__roles__reward__share=0.5)
