"""Numbers recorded from OpenRLHF, verl and TRL against this project's functions.

Which settings reproduce which library stands in the runners beside this file and in ``docs/ppo.md``.
"""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatch

import pytest
import vector_case
import vectors_openrlhf
import vectors_trl
import vectors_verl

RUNNERS = vectors_openrlhf.RUNNERS | vectors_verl.RUNNERS | vectors_trl.RUNNERS
CASES = vector_case.load()

GATE = "gates by binary KL or total variation are not offered; bands on the ratio are"
ABS = "the absolute log-ratio is no KL estimator here"
BASELINE = "this baseline is not offered"
LOSS = "this surrogate is not offered"
PRODUCT = "weights are those of tokens; a product over the sequence is not offered"
BATCH = "weights are not divided by their mean over the batch"
REJECTION = "rejection is by the token's ratio or the sequence's geometric mean only"
TEXT = "token ids are cut by the sampler, before any of these functions"

NO_EQUIVALENT = {
    "openrlhf.policy_loss.is_token_mask_binary_kl.g17": GATE,
    "openrlhf.policy_loss.is_token_mask_binary_kl_seqagg.g18": GATE,
    "openrlhf.policy_loss.is_token_mask_tv.g19": GATE,
    "openrlhf.policy_loss.is_token_mask_tv_seqagg.g20": GATE,
    "openrlhf.policy_loss.is_seq_mask_binary_kl.g23": GATE,
    "openrlhf.policy_loss.is_seq_mask_binary_kl_seqagg.g24": GATE,
    "openrlhf.policy_loss.is_seq_mask_tv.g25": GATE,
    "openrlhf.policy_loss.is_seq_mask_tv_seqagg.g26": GATE,
    "openrlhf.policy_loss.rejected_settings.g30": "combinations of options that do not exist here",
    "trl.tokens.truncate_response.g01": TEXT,
    "trl.tokens.truncate_response.g02": TEXT,
    "trl.tokens.truncate_response.g03": TEXT,
    "trl.tokens.first_true_indices.g04": TEXT,
    "trl.tokens.first_true_indices.g05": TEXT,
    "verl.advantages.opo.g13": BASELINE + ": mean weighted by length",
    "verl.advantages.opo_three_samples.g14": BASELINE + ": mean weighted by length",
    "verl.advantages.gpg.g15": BASELINE + ": scale by the number of non-zero scores",
    "verl.advantages.gpg_three_samples.g16": BASELINE + ": scale by the number of non-zero scores",
    "verl.advantages.remax.g22": BASELINE + ": score of a greedy response",
    "verl.advantages.remax.g23": BASELINE + ": score of a greedy response",
    "verl.advantages.remax.g24": BASELINE + ": score of a greedy response",
    "verl.kl_penalty.abs.g03": ABS,
    "verl.kl_penalty.abs_extreme.g04": ABS,
    "verl.kl_penalty.abs_plus_extreme.g11": ABS,
    "verl.reward.apply_kl_penalty_abs.g04": ABS,
    "verl.policy_loss.cispo.g16": LOSS,
    "verl.policy_loss.dppo_tv.g17": LOSS,
    "verl.policy_loss.dppo_kl.g18": LOSS,
    "verl.policy_loss.geo_mean.g19": LOSS,
    "verl.policy_loss.sapo.g20": LOSS,
    "verl.policy_loss.gpg.g21": LOSS,
    "verl.policy_loss.dro.g22": LOSS,
    "verl.policy_loss.bypass_reinforce.g24": LOSS,
    "verl.policy_loss.bypass_reinforce.g25": LOSS,
    "verl.policy_loss.bypass_ppo_clip.g35": REJECTION,
    "verl.rollout_correction.weights_sequence_tis.g03": PRODUCT,
    "verl.rollout_correction.weights_sequence_icepop.g04": PRODUCT,
    "verl.rollout_correction.weights_token_tis_batchnorm.g05": BATCH,
    "verl.rollout_correction.weights_sequence_tis_batchnorm.g06": PRODUCT,
    "verl.rollout_correction.weights_token_icepop_batchnorm.g25": BATCH,
    "verl.rollout_correction.reject_token_k2.g08": REJECTION,
    "verl.rollout_correction.reject_token_k3.g09": REJECTION,
    "verl.rollout_correction.reject_seq_sum_k1.g10": REJECTION,
    "verl.rollout_correction.reject_seq_sum_k2.g11": REJECTION,
    "verl.rollout_correction.reject_seq_sum_k3.g12": REJECTION,
    "verl.rollout_correction.reject_seq_mean_k2.g14": REJECTION,
    "verl.rollout_correction.reject_seq_mean_k3.g15": REJECTION,
    "verl.rollout_correction.reject_seq_max_k2.g16": REJECTION,
    "verl.rollout_correction.reject_seq_max_k3.g17": REJECTION,
    "verl.rollout_correction.reject_token_k1_and_seq_mean_k3.g18": REJECTION,
    "verl.rollout_correction.reject_seq_max_k3_and_token_k2.g23": REJECTION,
    "verl.rollout_correction.reject_seq_sum_k1.g24": REJECTION,
}
"""Cases of what this project does not offer, each with the reason."""

LEFT_OUT: dict[str, str] = {}
"""Cases with an equivalent that are not run, each with the reason."""

RETURNS = "critic-free: whitened advantages are handed on as returns, ours are never whitened"
PADDED = "mean over all positions, padding included"
PERPLEXITY = "perplexities and chi-square are not measured"
SPREAD = "this statistic of the weights is not measured"

OUTPUTS_WITHOUT_EQUIVALENT = {
    ("openrlhf.policy_loss.gspo_correction.*", "ppo_kl"): "from the old policy, ours from its own",
    ("trl.losses.*", "approxkl"): PADDED,
    ("trl.losses.*", "ratio_mean"): PADDED,
    ("trl.rollout_gae.*", "postprocessed_responses"): TEXT,
    ("trl.rollout_gae.*", "last_token_index"): TEXT,
    ("verl.advantages.reinforce_plus_plus_baseline*", "returns"): RETURNS,
    ("verl.same_input.reinforce_baseline*", "returns"): RETURNS,
    ("verl.rollout_correction.weights_token_*", "metrics.rollout_is_min"): SPREAD,
    ("verl.rollout_correction.weights_token_*", "metrics.rollout_is_std"): SPREAD,
    (
        "verl.rollout_correction.weights_token_tis.*",
        "metrics.rollout_is_ratio_fraction_low",
    ): SPREAD,
    ("verl.rollout_correction.offpolicy_metrics.*", "metrics.*ppl*"): PERPLEXITY,
    ("verl.rollout_correction.offpolicy_metrics.*", "metrics.chi2_*"): PERPLEXITY,
}
"""(cases, output) that a case which is run holds beside what this project computes."""

RUN = sorted(set(CASES) - set(NO_EQUIVALENT) - set(LEFT_OUT))


def skipped(case: vector_case.Case) -> frozenset[str]:
    patterns = [o for c, o in OUTPUTS_WITHOUT_EQUIVALENT if fnmatch(case.id, c)]
    names = vector_case.flat(case.outputs)
    return frozenset(n for n in names if any(fnmatch(n, pattern) for pattern in patterns))


@pytest.mark.parametrize("case_id", RUN)
def test_case(case_id: str) -> None:
    case = CASES[case_id]
    result = RUNNERS[case.topic](case)
    assert vector_case.differences(case, result, skipped(case)) == []


def test_every_case_is_run_or_listed() -> None:
    assert len(CASES) == 369
    listed = [*NO_EQUIVALENT, *LEFT_OUT]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(CASES)
    assert sorted([*RUN, *listed]) == sorted(CASES)
    for case_id in RUN:
        assert CASES[case_id].topic in RUNNERS
        # Something of every case is compared.
        assert set(vector_case.flat(CASES[case_id].outputs)) > skipped(CASES[case_id])


def test_at_most_5_percent_of_the_cases_with_an_equivalent_are_left_out() -> None:
    assert len(LEFT_OUT) <= 0.05 * (len(CASES) - len(NO_EQUIVALENT))


def test_every_listed_output_exists() -> None:
    for cases, output in OUTPUTS_WITHOUT_EQUIVALENT:
        found = [c for i, c in CASES.items() if fnmatch(i, cases) and i in RUN]
        assert found, cases
        assert any(fnmatch(n, output) for c in found for n in vector_case.flat(c.outputs)), output


def test_a_wrong_number_is_seen() -> None:
    """The comparison itself can fail."""
    case = CASES["openrlhf.policy_loss.plain.g01"]
    result = dict(RUNNERS[case.topic](case))
    for name, wrong in (
        ("loss", result["loss"] + 1e-8),
        ("loss", float("nan")),
        ("grad_log_probs", result["grad_log_probs"] * (1 + 1e-7)),
        ("grad_log_probs", result["grad_log_probs"][:, :1]),
    ):
        assert len(vector_case.differences(case, result | {name: wrong}, frozenset())) == 1
    del result["loss"]
    assert vector_case.differences(case, result, frozenset()) == ["loss: not computed"]
    other = dataclasses.replace(case, raw=case.raw | {"outputs": {"loss": 0.0}})
    assert vector_case.differences(other, {"loss": 0.0}, frozenset()) == []


@pytest.mark.parametrize(
    ("case_id", "module", "name", "value"),
    [
        # A reading of another library must not pass: the tolerances tell them apart.
        ("openrlhf.same_input.gae_g1.0_l1.0.g01", vectors_openrlhf, "WHITEN", vectors_verl.WHITEN),
        ("verl.same_input.gae_g1.0_l1.0.g01", vectors_verl, "WHITEN", vectors_openrlhf.WHITEN),
        ("verl.same_input.rloo_kl0.1.g09", vectors_verl, "GROUPS", vectors_openrlhf.GROUPS),
        ("openrlhf.same_input.rloo_kl0.1.g09", vectors_openrlhf, "GROUPS", vectors_verl.GROUPS),
        ("openrlhf.same_input.kl_k3.g06", vectors_openrlhf, "KL", {}),
        ("verl.same_input.policy_gspo.g16", vectors_verl, "GSPO", {"ratio": "sequence"}),
    ],
)
def test_the_readings_differ(
    monkeypatch: pytest.MonkeyPatch, case_id: str, module: object, name: str, value: object
) -> None:
    case = CASES[case_id]
    monkeypatch.setattr(module, name, value)
    assert vector_case.differences(case, RUNNERS[case.topic](case), skipped(case))
