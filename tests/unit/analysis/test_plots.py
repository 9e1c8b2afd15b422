from __future__ import annotations

import time

import pytest
from matplotlib import image

import analysis
import analysis.statistics
from analysis.plots import (
    draw_learning_curves,
    draw_parameters,
    learning_curve_data,
    parameter_data,
    style,
)
from analysis.plots.ticks import column_labels, log_ticks
from rlhf_core.errors import ConfigError


@pytest.mark.parametrize("count", [3, 500])
def test_both_plots_of_few_and_of_many_trials(simulated, tmp_path, count):
    sweep = analysis.load(simulated(count))
    began = time.process_time()
    paths = [
        analysis.save(analysis.plot_learning_curves(sweep), tmp_path / "plots" / "curves.png"),
        analysis.save(analysis.plot_parameters(sweep), tmp_path / "plots" / "parameters.png"),
    ]
    assert time.process_time() - began < 5
    for path in paths:
        pixels = image.imread(path)
        assert pixels.shape[1] == style.WIDTH * style.DPI, "nothing outgrows the common width"
        assert pixels[..., :3].std() > 0.05


def test_curve_data_holds_finite_points_by_fate(every_outcome):
    data = learning_curve_data(analysis.load(every_outcome.path))
    assert data.metrics == ("eval/heldout", "reward/proxy", "kl/response")
    assert data.best == "t0001"
    assert data.points["value"].notna().all()
    fates = data.points.groupby("trial")["fate"].first().astype(str)
    assert fates.to_dict() == {
        "t0000": "completed", "t0001": "completed", "t0002": "stopped", "t0003": "diverged",
        "t0007": "unfinished", "t0008": "running",
    }  # fmt: skip


def test_metrics_that_no_trial_measured_have_no_panel(builder):
    builder.begin("t0000")
    builder.report("t0000", 0, custom__score=1.0, reward__proxy=None)
    sweep = analysis.load(builder.path)
    assert learning_curve_data(sweep).metrics == ()
    assert learning_curve_data(sweep, ["custom/score", "kl/token"]).metrics == ("custom/score",)
    assert len(analysis.plot_learning_curves(sweep, ["custom/score"]).axes) == 1


def test_labels_carry_units_and_the_best_is_named_on_the_curve(every_outcome):
    figure = draw_learning_curves(learning_curve_data(analysis.load(every_outcome.path)))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["eval/heldout", "reward/proxy", "kl/response [nats]"]
    assert any("t0001" in text.get_text() for text in figure.axes[0].texts)
    assert len(figure.legends[0].get_texts()) == 6, "five fates and the best, no trials"


def test_a_runaway_trial_does_not_take_over_the_axis(every_outcome):
    every_outcome.begin("t0010")
    every_outcome.report("t0010", 0, kl__response=1.0)
    every_outcome.report("t0010", 1, kl__response=1e7)
    every_outcome.end("t0010", "diverged")
    figure = analysis.plot_learning_curves(analysis.load(every_outcome.path), ["kl/response"])
    assert figure.axes[0].get_ylim()[1] < 100
    assert figure.axes[0].get_title(loc="right") == "3 curves leave the frame"


def test_robust_limits_keep_the_best_inside():
    values = [0.0, 0.1, 0.2, 0.3, 50.0]
    low, high = style.robust_limits(values)
    assert low < 0.0
    assert 0.3 < high < 5
    assert style.robust_limits(values, [50.0])[1] > 50
    assert style.robust_limits([1.0, 1.0])[0] < 1.0 < style.robust_limits([1.0, 1.0])[1]
    assert style.robust_limits([float("nan")]) is None


def test_parameter_axes_follow_the_space(simulated):
    data = parameter_data(analysis.load(simulated(24)))
    keys = [axis.key for axis in data.axes]
    assert keys[:2] == ["optim.policy.lr", "optim.critic.lr"]
    figure = draw_parameters(data)
    panels = {axes.get_xlabel(): axes for axes in figure.axes}
    assert panels["policy.lr"].get_xscale() == "log"
    assert panels["clip_range_low"].get_xscale() == "linear"
    ticks = [text.get_text() for text in panels["ppo.estimator"].get_xticklabels()]
    assert ticks == ["gae", "rloo", "reinforce_\nbaseline", "group_\nnorm"]
    low, high = panels["policy.lr"].get_xlim()
    assert low < 1e-6
    assert high > 1e-3


def test_a_parameter_with_one_value_has_no_panel_and_a_conditional_one_says_so(builder):
    for number in range(4):
        params = {"fixed": 1, "a.x": number, **({"a.y": number} if number < 3 else {})}
        builder.completed(f"t000{number}", float(number), params=params)
    figure = analysis.plot_parameters(analysis.load(builder.path))
    assert [axes.get_xlabel() for axes in figure.axes] == ["a.x", "a.y  (3 of 4 trials)"]


def test_trials_without_value_stand_in_the_strip(simulated):
    sweep = analysis.load(simulated(24))
    figure = analysis.plot_parameters(sweep, ["optim.policy.lr"])
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    drawn = [p for c in axes.collections for p in c.get_offsets() if len(c.get_offsets())]
    missing = int(sweep.trials["value"].isna().sum())
    assert missing > 0
    assert sum(y < low + 0.1 * (high - low) for _, y in drawn) == missing


def test_trials_beyond_the_frame_are_noted_in_the_heading_and_above_no_panel(builder):
    for number in range(9):
        params = {"a.x": number, "a.y": 9 - number, "a.z": number % 3}
        value = -50.0 if number == 8 else 1.0 + number / 10
        builder.completed(f"t000{number}", value, params=params)
    figure = analysis.plot_parameters(analysis.load(builder.path))
    assert "1 trial lies beyond the frame" in figure.legends[0].get_title().get_text()
    assert not any(axes.get_title(loc="right") for axes in figure.axes)


@pytest.mark.parametrize("plot", [analysis.plot_learning_curves, analysis.plot_parameters])
def test_nothing_to_draw_is_said(builder, plot, tmp_path):
    figure = plot(analysis.load(builder.path))
    assert "yet" in figure.texts[0].get_text()
    assert analysis.save(figure, tmp_path / "none.svg").stat().st_size > 0


def test_save_is_all_or_nothing(builder, tmp_path):
    figure = analysis.plot_parameters(analysis.load(builder.path))
    target = tmp_path / "figure.png"
    target.write_text("before")

    def fail(*args, **kwargs):
        raise OSError("disk full")

    saved, figure.savefig = figure.savefig, fail
    with pytest.raises(OSError, match="disk full"):
        analysis.save(figure, target)
    assert target.read_text() == "before"
    figure.savefig = saved
    analysis.save(figure, target)
    assert target.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["figure.png"]
    with pytest.raises(ConfigError, match="suffix"):
        analysis.save(figure, tmp_path / "figure.xyz")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1e-6, 1e-3, [1e-6, 1e-5, 1e-4, 1e-3]),
        (1e-5, 8e-5, [1e-5, 2e-5, 5e-5]),
        (1e-12, 1.0, [1e-12, 1e-8, 1e-4, 1.0]),
        (2.2, 2.4, [2.2, 2.4]),
    ],
)
def test_log_ticks(low, high, ticks):
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_column_labels_stay_distinct():
    assert column_labels(["a/tiny", "b/small"]) == ["tiny", "small"]
    assert column_labels(["a/tiny", "b/tiny"]) == ["a/tiny", "b/tiny"]
    long = ["x" * 12 + "1" + "y" * 12, "x" * 12 + "2" + "y" * 12]
    assert column_labels(long) == long
    assert column_labels(["p" * 30, "q"]) == ["p" * 10 + "…" + "p" * 10, "q"]


def test_iterations_and_trials_are_counted_in_whole_numbers(builder):
    """A sweep of two trials and one iteration would else have ticks at a quarter of them."""
    for trial in ("t0000", "t0001"):
        builder.begin(trial)
        builder.report(trial, 0, eval__heldout=0.0)
        builder.report(trial, 1, eval__heldout=1.0)
        builder.end(trial, "completed", 1.0)
    figure = analysis.plot_survival(analysis.load(builder.path))
    for axes in figure.axes:
        assert all(float(tick).is_integer() for tick in axes.get_xticks())
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_yticks())


@pytest.mark.parametrize(
    ("plot", "line"),
    [
        (lambda s: analysis.plot_parameters(s, ["optim.policy.rl"]), "'optim.policy.lr'"),
        (lambda s: analysis.plot_contour(s, "ppo.clip_rnge_low"), "'ppo.clip_range_low'"),
        (lambda s: analysis.plot_learning_curves(s, ["eval/held"]), "'eval/heldout'"),
        (lambda s: analysis.statistics.budget_correlation(s, "eval/held"), "'eval/heldout'"),
        (lambda s: analysis.final_by(s, "sync.intervall"), "'sync.interval'"),
    ],
)
def test_a_name_that_does_not_exist_is_one_line_with_near_misses(every_outcome, plot, line):
    every_outcome.completed("t0010", 1.0, params={"sync.interval": 2})
    with pytest.raises(ConfigError, match=f"did you mean {line}") as raised:
        plot(analysis.load(every_outcome.path))
    assert len(str(raised.value).splitlines()) == 1
