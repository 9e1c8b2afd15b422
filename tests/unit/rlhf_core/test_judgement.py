"""The last judgement: the trained policy against the one it started from, on test prompts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import prompts, rollout, trial_config

from rlhf_core.config import TrialConfig
from rlhf_core.errors import CheckpointError
from rlhf_core.experience import Batch, build_experience, standard_error
from rlhf_core.judgement import judge
from rlhf_core.ppo.scores import RunningNorm
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import plan_trial
from rlhf_core.store import LocalStore
from rlhf_core.trial import PPOTrial
from rlhf_core.types import Rollout, Scores, concat_rollouts


def _train(config: TrialConfig, store: LocalStore) -> None:
    plan = plan_trial(config)
    trial = PPOTrial(config, LocalRuntime(config, plan), plan, store)
    list(trial)
    trial.close()


def test_an_untrained_policy_gains_nothing(zoo: Zoo, tmp_path: Path) -> None:
    config = trial_config(zoo, optim__policy__lr=1e-12, budget__iterations=1)
    _train(config, LocalStore(tmp_path))
    judged = judge(config, LocalStore(tmp_path), prompts=16)
    assert judged.gain == judged.stderr == judged.standard_errors == 0.0
    assert judged.before == judged.after
    assert judged.kl_response == pytest.approx(0.0, abs=1e-4)
    assert all(before == after for _, before, after in judged.samples)


def test_a_trained_policy_is_judged_by_the_heldout_reward_paired(zoo: Zoo, tmp_path: Path) -> None:
    config = trial_config(
        zoo, reward__heldout_function="core_rewards:vowels", budget__iterations=12,
        optim__policy__lr=2e-2, rollout__prompts_per_iteration=16,
    )  # fmt: skip
    store = LocalStore(tmp_path)
    _train(config, store)
    judged = judge(config, store, prompts=1000)
    # No prompt is asked twice.
    assert judged.prompts == 28
    # No file of test prompts was named, so that of the training prompts is used.
    assert judged.trained_on == 28
    assert judged.metric == "heldout"
    assert judged.gain == pytest.approx(judged.after - judged.before, abs=1e-6)
    assert (judged.proxy_before, judged.proxy_after) == pytest.approx((judged.before, judged.after))
    assert judged.gain > 0
    assert judged.standard_errors == pytest.approx(judged.gain / judged.stderr)
    assert judged.kl_response > 0.1
    assert judged == judge(config, store, prompts=1000)
    assert judged.as_dict()["standard_errors"] == judged.standard_errors
    assert len(judged.samples) == 8
    # It learned to write vowels and little else.
    assert 0 < judged.distinct_after[0] < judged.distinct_before[0] < 1


def test_prompts_that_were_trained_on_are_counted(zoo: Zoo, tmp_path: Path) -> None:
    trained = Path(zoo.prompts).read_text("utf-8").splitlines()
    config = trial_config(zoo, budget__iterations=1)
    file = tmp_path / "test.txt"
    file.write_text("\n".join([*trained[:3], *(f"{line} {line}" for line in trained[3:])]))
    data = config.data.model_copy(update={"test_prompts": str(file)})
    config, store = config.model_copy(update={"data": data}), LocalStore(tmp_path / "trial")
    _train(config, store)
    assert judge(config, store, prompts=1000).trained_on == 3


def test_a_split_trial_is_judged_in_this_process(zoo: Zoo, tmp_path: Path) -> None:
    config = trial_config(zoo, budget__iterations=1)
    _train(config, LocalStore(tmp_path))
    split = config.resources.model_copy(update={"layout": "split"})
    other = config.model_copy(update={"resources": split})
    store = LocalStore(tmp_path)
    assert judge(other, store, prompts=4) == judge(config, store, prompts=4)


def test_without_a_checkpoint_there_is_nothing_to_judge(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        judge(trial_config(zoo), LocalStore(tmp_path), prompts=4)


def test_parts_are_joined_without_changing_a_row(zoo: Zoo) -> None:
    config = trial_config(zoo)
    whole, _ = rollout(config)
    parts = [whole.select([2]), whole.select([5, 0]), whole.select(range(1, 8))]
    joined = concat_rollouts(parts, pad_id=0)
    order = [2, 5, 0, *range(1, 8)]
    for row, source in enumerate(order):
        assert joined.response(row) == whole.response(source)
        count = len(whole.response(source))
        assert torch.equal(joined.logprobs_BT[row, :count], whole.logprobs_BT[source, :count])
        assert joined.prompt_lengths_B[row] == whole.prompt_lengths_B[source]
    assert len(prompts(config)) == whole.size


def _experience(config: TrialConfig, batch: Rollout, scores_B: torch.Tensor) -> dict[str, float]:
    return build_experience(config, _batch(batch, scores_B), 0.5, RunningNorm())[1]


def _batch(rollout: Rollout, scores_B: torch.Tensor) -> Batch:
    zeros = torch.zeros_like(rollout.logprobs_BT)
    groups_B = torch.arange(rollout.size)
    return Batch(rollout, Scores(scores_B, None), groups_B, rollout.logprobs_BT, zeros)


def test_the_reward_of_an_episode_is_the_score_less_its_penalties(zoo: Zoo) -> None:
    batch, _ = rollout(trial_config(zoo))
    finished_B = torch.tensor([True] * 5 + [False] * 3)
    batch = replace(batch, finished_B=finished_B)
    scores_B = torch.tensor([3.0, -3.0, 0.5, 1.0, 2.0, 3.0, 0.0, 1.0])
    for clip, penalty in ((None, 0.0), (None, 1.0), (1.5, 0.0), (1.5, 1.0)):
        config = trial_config(zoo, reward__clip=clip, reward__missing_eos_penalty=penalty)
        metrics = _experience(config, batch, scores_B)
        wanted = scores_B - penalty * (~finished_B).float()
        wanted = wanted if clip is None else wanted.clamp(-clip, clip)
        assert metrics["reward/total"] == pytest.approx(float(wanted.mean()), abs=1e-6)
        assert metrics["reward/proxy"] == pytest.approx(float(scores_B.mean()))
        assert metrics["rollout/truncated_share"] == 3 / 8
        assert metrics["kl/response"] == 0.0


def test_whitened_advantages_have_mean_zero_and_variance_one(zoo: Zoo) -> None:
    batch, _ = rollout(trial_config(zoo))
    for whiten in (True, False):
        config = trial_config(zoo, ppo__whitening="mean_std" if whiten else "off")
        made, metrics, _ = build_experience(
            config, _batch(batch, torch.arange(8.0)), 0.0, RunningNorm()
        )
        picked = made.advantages_BT[batch.response_mask_BT]
        mean, std = float(picked.mean()), float(picked.std())
        assert (abs(mean) < 1e-5 and abs(std - 1) < 0.02) == whiten
        if not whiten:
            assert metrics["advantage/mean"] == pytest.approx(mean, abs=1e-5)
        assert (made.advantages_BT[~batch.response_mask_BT] == 0).all()


def test_the_standard_error_of_a_mean() -> None:
    assert standard_error(torch.tensor([1.0])) == 0.0
    assert standard_error(torch.tensor([1.0, 2.0, 3.0, 4.0])) == pytest.approx((5 / 3) ** 0.5 / 2)
