"""Statistics against numbers worked out by hand, and against rliable and Optuna where they are installed."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pandas as pd
import pytest
from scipy import stats

import analysis
from analysis import statistics
from rlhf_core.errors import ConfigError


def test_iqm_cuts_a_quarter_at_either_end():
    assert statistics.iqm([[1, 2, 3, 100]]) == 2.5
    assert statistics.iqm([[0, 10], [4, 6]]) == 5.0, "strata are pooled"
    assert statistics.iqm([[1, 2, 30]]) == 11.0, "of three, none is cut"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 101])
def test_iqm_is_the_trimmed_mean_of_scipy_to_the_last_bit(count):
    scores = np.random.default_rng(count).normal(size=count)
    assert statistics.iqm([scores]) == stats.trim_mean(scores, 0.25)


@pytest.mark.parametrize("scores", [[], [[]], [[1.0, math.nan]], [[math.inf]]])
def test_scores_that_mean_nothing_are_refused(scores):
    with pytest.raises(ConfigError, match="finite"):
        statistics.iqm(scores)


def test_bootstrap_stays_within_its_strata():
    low = statistics.bootstrap([[0.0] * 5, [10.0] * 5])
    assert low == (5.0, 5.0, 5.0), "pooled resampling would vary"
    spread = statistics.bootstrap([[0.0, 1.0]] * 1, repeats=4000)
    assert spread == (0.5, 0.0, 1.0), "both runs equal one time in two"
    assert statistics.bootstrap([[1, 2, 3, 4, 5]], seed=1) == statistics.bootstrap(
        [[1, 2, 3, 4, 5]], seed=1
    )


def test_bootstrap_takes_any_statistic():
    found = statistics.bootstrap([[1.0, 2.0, 4.0]], lambda s: float(np.max(s[0])), level=0.9)
    assert found.value == 4.0
    assert (found.low, found.high) == (2.0, 4.0), "P(max = 1) is 1/27, below 5 %"


def test_bootstrap_of_a_mean_has_the_width_of_its_standard_error():
    scores = np.random.default_rng(0).normal(size=400)
    found = statistics.bootstrap([scores], lambda s: float(np.mean(s[0])))
    error = scores.std() / 20
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.08)


def test_probability_of_improvement():
    assert statistics.probability_of_improvement([[2, 3]], [[1, 2]]) == (2 + 1.5) / 4
    assert statistics.probability_of_improvement([[1], [5]], [[2], [4]]) == 0.5, "mean over strata"
    assert statistics.probability_of_improvement([[1, 1]], [[1]]) == 0.5
    with pytest.raises(ConfigError, match="same strata"):
        statistics.probability_of_improvement([[1]], [[1], [2]])


def test_performance_profile_is_the_share_above():
    profile = statistics.performance_profile([[1, 2], [2, 4]], [0, 1, 2, 4])
    assert profile.tolist() == [1.0, 0.75, 0.25, 0.0]


def test_the_interval_is_that_of_scipy():
    """rliable resamples each task within itself, as scipy does each sample."""
    rng = np.random.default_rng(3)
    strata = [rng.normal(0.3, 1, size) for size in (7, 9, 5)]

    def pooled(*samples, axis):
        return stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)

    theirs = stats.bootstrap(
        tuple(strata), pooled, n_resamples=6000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    ours = statistics.bootstrap(strata, repeats=6000)
    assert ours[1:] == pytest.approx(tuple(theirs), abs=0.04)


def test_seed_noise_of_two_configurations_by_hand():
    # Means 1 and 5, within 2 (mean square), between mean square 2 * 8 = 16: (16 - 2) / 2 = 7.
    found = statistics.seed_noise([[0, 2], [4, 6]])
    assert found.within == pytest.approx(math.sqrt(2))
    assert found.between == pytest.approx(math.sqrt(7))
    assert found.share == pytest.approx(7 / 9)


def test_seed_noise_without_differences_and_without_seeds():
    same = statistics.seed_noise([[0, 2], [0, 2], [2, 0]])
    assert (same.between, same.share) == (0.0, 0.0)
    sure = statistics.seed_noise([[1, 1], [2, 2]])
    assert (sure.within, sure.share) == (0.0, 1.0)
    with pytest.raises(ConfigError, match="two configurations"):
        statistics.seed_noise([[1, 2], [3]])


def test_replicates_differ_in_their_seed_alone(builder):
    for number, (lr, seed, value) in enumerate(
        [(0.1, 1, 1.0), (0.1, 2, 1.2), (0.2, 1, 3.0), (0.2, 2, 2.0), (0.3, 1, 9.0)]
    ):
        builder.completed(f"t000{number}", value, params={"lr": lr, "seed": seed})
    groups = statistics.replicates(analysis.load(builder.path))
    assert list(groups) == [("t0000", "t0001"), ("t0002", "t0003")]
    table = statistics.seed_table(groups, ascending=False)
    assert table["trial"].tolist() == ["t0002", "t0000"]
    assert table["iqm"].tolist() == pytest.approx([2.5, 1.1])
    assert table["seeds"].tolist() == [2, 2]
    assert (table["low"] <= table["iqm"]).all()


def test_expected_best_of_three_values():
    found = statistics.expected_best([1.0, 2.0, 6.0], [1, 2, 3])
    # Of the three pairs one has 2 as its best, two have 6.
    assert found["mean"].tolist() == pytest.approx([3.0, 14 / 3, 6.0])
    assert found["low"].tolist() == [1.0, 2.0, 6.0]
    assert found["high"].tolist() == [6.0, 6.0, 6.0]
    down = statistics.expected_best([1.0, 2.0, 6.0], [2], ascending=True)
    assert down["mean"].iloc[0] == pytest.approx(4 / 3)
    with pytest.raises(ConfigError, match="draws"):
        statistics.expected_best([1.0], [2])


def test_expected_best_is_that_of_all_orders():
    values = np.random.default_rng(0).normal(size=30)
    rng = np.random.default_rng(1)
    drawn = [np.maximum.accumulate(rng.permutation(values)) for _ in range(4000)]
    found = statistics.expected_best(values, range(1, 31))
    assert found["mean"].to_numpy() == pytest.approx(np.mean(drawn, axis=0), abs=0.03)


def test_budget_correlation(builder):
    # At iteration 1 the order is reversed, at 2 it is the final one.
    for number in range(6):
        trial = f"t000{number}"
        builder.begin(trial)
        builder.report(trial, 1, eval__heldout=-float(number))
        builder.report(trial, 2, eval__heldout=2.0 * number)
        builder.end(trial, "completed", float(number), iteration=2)
    table = statistics.budget_correlation(analysis.load(builder.path))
    assert table["iteration"].tolist() == [1, 2]
    assert table["rho"].tolist() == pytest.approx([-1.0, 1.0])
    assert table["kept"].tolist() == [0.0, 1.0]
    assert table["trials"].tolist() == [6, 6]
    with pytest.raises(ConfigError, match="eval/heldout"):
        statistics.budget_correlation(analysis.load(builder.path), "eval/held")


def test_search_course_against_the_bill(builder):
    for number, value in enumerate([1.0, 3.0, 2.0]):
        builder.completed(f"t000{number}", value, kl=30.0 if number == 1 else 5.0)
    course = statistics.search_course(analysis.load(builder.path))
    assert course["best"].tolist() == [1.0, 1.0, 2.0], "the second breaks the constraint"
    assert course["gpu_hours"].tolist() == pytest.approx([7 / 3600, 14 / 3600, 21 / 3600])
    # It counts as the worst eligible value: the values are 1, 1 and 2.
    assert course["random"].tolist() == pytest.approx([4 / 3, 5 / 3, 2.0])


def test_search_course_of_nothing_eligible(builder):
    builder.begin("t0000")
    builder.end("t0000", "failed")
    course = statistics.search_course(analysis.load(builder.path))
    assert course["random"].isna().all()
    assert course["gpu_hours"].isna().all()


def test_pareto_front_and_hypervolume_by_hand():
    points = [[1, 1], [2, 2], [2, 2], [3, 5], [0, 4]]
    # More of the first is better, less of the second.
    assert statistics.pareto_front(points, [True, False]).tolist() == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert statistics.hypervolume([[1, 2], [2, 1]], [3, 3], [False, False]) == 3.0
    assert statistics.hypervolume([[1, 2], [4, 0]], [3, 3], [False, False]) == 2.0
    assert statistics.hypervolume([[1, 1, 1], [0, 2, 2]], [2, 3, 3], [False] * 3) == 4 + 2 - 1
    assert statistics.hypervolume([[2, 2]], [0, 3], [True, False]) == 2.0
    assert statistics.hypervolume(np.empty((0, 2)), [1, 1], [True, True]) == 0.0
    with pytest.raises(ConfigError, match="2 goals"):
        statistics.pareto_front([[1, 2, 3]], [True, False])


def test_trade_off_of_a_sweep(builder):
    for number, (value, kl) in enumerate([(1.0, 1.0), (2.0, 4.0), (1.5, 5.0)]):
        builder.completed(f"t000{number}", value, kl=kl)
    frame = statistics.trade_off(analysis.load(builder.path))
    assert frame["front"].to_dict() == {"t0001": True, "t0002": False, "t0000": True}
    assert frame["gpu_hours"].tolist() == pytest.approx([7 / 3600] * 3)
    # Box from (1, 5) to (2, 1): the front's inner corner is at (2, 4), an area of 1 of 4.
    assert frame.attrs["hypervolume"] == pytest.approx(0.25)


def test_hacking_signs(builder):
    courses = {
        "t0000": ([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 0.5, 0.2]),  # hacked
        "t0001": ([0.0, 1.0, 2.0, 3.0], [0.0, 0.5, 0.9, 1.0]),  # both rise
        "t0002": ([0.0, 2.0, 1.0, 0.5], [0.0, 1.0, 0.5, 0.2]),  # both fall
        "t0003": ([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 0.99, 0.95]),  # within the noise
    }
    for trial, (proxy, heldout) in courses.items():
        builder.begin(trial)
        for i, (p, h) in enumerate(zip(proxy, heldout, strict=True)):
            noise = {"eval__heldout_stderr": 0.05}
            builder.report(trial, i, eval__proxy=p, eval__heldout=h, **noise)
    signs = statistics.hacking_signs(analysis.load(builder.path))
    assert signs["hacked"].to_dict() == {
        "t0000": True,
        "t0001": False,
        "t0002": False,
        "t0003": False,
    }
    assert signs.loc["t0000", ["peak", "drop", "gain"]].tolist() == pytest.approx([1, 0.8, 2.0])
    assert signs.loc["t0000", "error"] == pytest.approx(math.hypot(0.05, 0.05))


def test_hacking_signs_without_a_pair_of_rewards(builder):
    builder.begin("t0000")
    builder.report("t0000", 1, custom__score=1.0)
    assert statistics.hacking_signs(analysis.load(builder.path)).empty


@pytest.mark.parametrize("method", ["ped-anova", "fanova"])
def test_importance_finds_the_parameter_that_matters(simulated, method):
    if method == "fanova":
        pytest.importorskip("sklearn")
    table = statistics.importance(analysis.load(simulated(40)), method, repeats=3)
    assert table.index[0] == "optim.policy.lr"
    assert table["importance"].sum() == pytest.approx(1.0)
    assert (table["low"] <= table["high"]).all()
    assert table["importance"].iloc[0] > 0.5


def test_importance_is_that_of_optuna(simulated):
    sweep = analysis.load(simulated(60))
    done = sweep.trials[sweep.trials["outcome"] == "completed"]
    quantile = max(0.1, 4 / len(done))
    study = optuna.create_study(direction="maximize")
    for _, row in done.iterrows():
        spread = {
            "optim.policy.lr": optuna.distributions.FloatDistribution(1e-6, 1e-3, log=True),
            "sync.interval": optuna.distributions.IntDistribution(1, 8),
        }
        params = {key: row[f"params.{key}"] for key in spread}
        params["sync.interval"] = int(params["sync.interval"])
        trial = optuna.trial.create_trial(params=params, distributions=spread, value=row["value"])
        study.add_trial(trial)
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
    theirs = optuna.importance.get_param_importances(study, evaluator=evaluator)
    ours = statistics.importance(sweep, repeats=0)["importance"]
    for key in theirs:
        ratio = ours[key] / ours[list(theirs)].sum()
        assert ratio == pytest.approx(theirs[key] / sum(theirs.values()), rel=1e-6)


def test_importance_of_too_little(simulated):
    assert statistics.importance(analysis.load(simulated(3))).empty
    with pytest.raises(ConfigError, match="ped-anova or fanova"):
        statistics.importance(analysis.load(simulated(3)), "shap")


def test_importance_leaves_the_seed_out(cluster):
    table = statistics.importance(analysis.load(cluster(12)), repeats=0)
    assert set(table.index) == {"sync.interval", "resources.cpus_per_gpu"}
    assert isinstance(table, pd.DataFrame)
