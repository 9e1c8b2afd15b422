"""Sweeps with several objectives: all of them in tables, plots, sentences and files, and who is chosen."""

from __future__ import annotations

import io
import json

import numpy as np
import optuna
import pytest
from rich.console import Console
from run_directories import TWO_GOALS, Builder

import analysis
from analysis import plots
from analysis.plots import GALLERY
from analysis.report import render
from analysis.report.story import asked
from analysis.statistics import hypervolume, objective_front, volume_course
from rlhf_core.config import TrialConfig
from rlhf_core.errors import ConfigError
from sweeps.cli import main

COST = "cost/gpu_seconds"
# Value and cost of each trial; t0001 is beaten by t0002, and the last breaks the constraint.
TRIALS = {"t0000": (3.0, 9.0), "t0001": (1.0, 6.0), "t0002": (2.0, 4.0), "t0003": (0.5, 2.0)}
FRONT = ["t0000", "t0002", "t0003"]


def add(builder: Builder, trial: str, value: float, cost: float | None, **how) -> None:
    kl = how.pop("kl", 5.0)
    builder.begin(trial, how.pop("params", {"optim.policy.lr": 1e-4 * (1 + int(trial[1:]))}), **how)
    builder.report(trial, 0, eval__heldout=0.0)
    last = {"eval__heldout": value, "eval__kl_response": kl, "cost__gpu_seconds": cost}
    builder.report(trial, 2, **last)
    builder.end(trial, "completed", value, iteration=2, **how)


@pytest.fixture
def several(tmp_path):
    builder = Builder(tmp_path / "run", trials=5, config=TWO_GOALS)
    for trial, (value, cost) in TRIALS.items():
        add(builder, trial, value, cost)
    add(builder, "t0004", 9.0, 1.0, kl=99.0)
    return builder


def printed(thing) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(thing)
    return console.export_text()


def test_objectives_are_read_with_the_one_that_ranks_first(several):
    sweep = analysis.load(several.path)
    assert [str(goal) for goal in sweep.objectives] == [
        "maximize eval/heldout",
        "minimize cost/gpu_seconds",
    ]
    assert sweep.objective == sweep.objectives[0]
    assert analysis.load([several.path, several.path]).objectives == sweep.objectives


def test_another_objective_can_rank(several):
    sweep = analysis.load(several.path)
    cheap = sweep.ranked_by(COST)
    assert cheap.trials["value"].tolist() == [9.0, 6.0, 4.0, 2.0, 1.0]
    assert analysis.best(cheap) == "t0003", "the cheapest that keeps the constraint"
    assert cheap.ranked_by("eval/heldout").trials["value"].tolist()[0] == 3.0
    with pytest.raises(ConfigError, match=r"no objective 'cost/gpu_second'.*cost/gpu_seconds"):
        sweep.ranked_by("cost/gpu_second")


def test_the_front_is_of_what_may_be_chosen(several):
    add(several, "t0005", 8.0, None)
    sweep = analysis.load(several.path)
    table = objective_front(sweep)
    assert analysis.front(sweep) == FRONT
    # The box: 0.5 to 3 by 2 to 9.
    share = hypervolume([TRIALS[t] for t in FRONT], (0.5, 9.0), (True, False)) / (2.5 * 7)
    assert table.attrs["covered"] == pytest.approx(share)
    assert table.loc["t0005", ["eligible", "front"]].tolist() == [True, False], (
        "cost was not measured"
    )


def test_the_front_of_one_objective_is_its_best(builder):
    for trial, value in (("t0000", 1.0), ("t0001", 2.0)):
        builder.completed(trial, value)
    assert analysis.front(analysis.load(builder.path)) == ["t0001"]


def test_the_volume_grows_to_what_the_front_covers_and_ends_where_chance_does(several):
    sweep = analysis.load(several.path)
    course = volume_course(sweep)
    assert course["volume"].is_monotonic_increasing
    covered = objective_front(sweep).attrs["covered"]
    assert course[["volume", "random", "random_low", "random_high"]].iloc[-1].tolist() == (
        pytest.approx([covered] * 4)
    )
    assert course["gpu_hours"].iloc[-1] == pytest.approx(22 / 3600)
    assert course["front"].tolist() == [True, False, True, True, False]


def test_three_objectives(several):
    goals = {"eval/heldout": "maximize", COST: "minimize", "eval/kl_response": "minimize"}
    several.write("sweep.json", several.info | {"config": {"search": {"objectives": goals}}})
    add(several, "t0005", 0.4, 12.0, kl=1.0)
    sweep = analysis.load(several.path)
    assert analysis.front(sweep) == [*FRONT, "t0005"], "the worst in two, the best in the third"
    course = volume_course(sweep)
    table = objective_front(sweep)
    assert course["volume"].iloc[-1] == pytest.approx(table.attrs["covered"])
    figure = plots.plot_objectives(sweep)
    assert len(figure.axes) == 3


def test_the_leaderboard_shows_all_objectives_and_ranks_by_the_first(several):
    sweep = analysis.load(several.path)
    board = analysis.leaderboard(sweep)
    assert board["trial"].tolist() == ["t0000", "t0002", "t0001", "t0003", "t0004"]
    assert board[f"final.{COST}"].tolist() == [9.0, 4.0, 6.0, 2.0, 1.0]
    assert board["front"].tolist() == [True, True, False, True, False]
    text = printed(analysis.render_leaderboard(sweep))
    assert "maximize eval/heldout, minimize cost/gpu_seconds" in text
    assert "ranked by eval/heldout; *: on the front" in text
    assert "gpu_seconds  front" in text
    assert max(map(len, text.splitlines())) <= 100


def test_finalists_have_the_other_objectives_of_their_test_runs(several):
    for number, (of, value, cost) in enumerate(
        [("t0000", 1.0, 9.5), ("t0000", 2.0, 8.5), ("t0002", 2.5, 4.0), ("t0002", 2.5, 4.5)], 5
    ):
        add(several, f"t{number:04d}", value, cost, purpose="test", of=of, params={"seed": number})
    table = analysis.finalists(analysis.load(several.path))
    assert table["trial"].tolist() == ["t0002", "t0000"]
    assert table[f"test.{COST}"].tolist() == [4.25, 9.0]


def test_sentences_name_the_front_and_by_which_objective_the_best_is_chosen(several):
    said = analysis.findings(analysis.load(several.path))
    assert said[1].startswith("The best of 4 eligible trials by the first of 2 objectives is t0000")
    assert said[2].startswith(
        "3 eligible trials are on the front of 2 objectives, with eval/heldout from 0.5 to 3 and "
        "cost/gpu_seconds from 2 to 9; they cover "
    )
    assert said[2].endswith("t0000 is one of them.")


def test_a_sweep_in_which_no_trial_measured_all_objectives(tmp_path):
    builder = Builder(tmp_path / "run", config=TWO_GOALS)
    add(builder, "t0000", 1.0, None)
    sweep = analysis.load(builder.path)
    assert analysis.front(sweep) == []
    assert "No eligible trial has measured every objective." in analysis.findings(sweep)
    assert np.isnan(volume_course(sweep)["volume"]).all()
    assert "cost/gpu_seconds -" in printed(analysis.render_status(sweep))
    assert not plots.plot_objectives(sweep).axes
    assert not plots.plot_volume(sweep).axes


def test_the_report_has_what_is_about_one_objective_for_each(several):
    sweep = analysis.load(several.path)
    told = " ".join(asked(sweep))
    assert "Maximise eval/heldout and minimise cost/gpu_seconds under" in told
    assert "chosen by the first, eval/heldout" in told
    for exhibit in GALLERY:
        views = dict(exhibit.views(sweep))
        assert len(views) == (2 if exhibit.each else 1)
        if exhibit.each:
            assert views[f"{exhibit.title}: minimize cost/gpu_seconds"].metric == COST


def test_parallel_coordinates_have_an_axis_for_each_objective(several):
    data = plots.parameter_data(analysis.load(several.path))
    assert data.others == (COST,)
    figure = plots.draw_parallel(data)
    names = [text.get_text().replace("\n", "") for text in figure.axes[0].texts]
    assert {"cost/gpu_seconds", "eval/heldout"} <= set(names)


def test_best_and_status_tell_all_objectives(several, capsys):
    assert main(["best", str(several.path)]) == 0
    told = capsys.readouterr().out
    assert "cost/gpu_seconds 9.0000" in told
    assert "ranked by eval/heldout; 3 on the front, t0000 among them: t0000, t0002, t0003" in told
    assert main(["best", str(several.path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["objectives"] == {"eval/heldout": 3.0, COST: 9.0}
    assert document["front"] == FRONT
    assert "best so far t0000: eval/heldout 3, cost/gpu_seconds 9" in printed(
        analysis.render_status(analysis.load(several.path))
    )


def test_an_export_says_which_trial_it_is_and_by_which_objective(several, capsys):
    several.write("trials/t0000/config.json", TrialConfig().model_dump(mode="json"))
    (several.path / "best.yaml").write_text("{}\n")
    chosen = {
        "trial": "t0000",
        "objective": "eval/heldout",
        "objectives": {"eval/heldout": 3, COST: 9},
    }
    several.write("best.json", chosen)
    assert main(["export", str(several.path), "--to", "env"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("(t0000, the best by eval/heldout, the first of 2 objectives). Names are "
                          "dotted keys; null is empty, a list is JSON.")  # fmt: skip


def test_a_study_of_several_objectives_keeps_them():
    study = optuna.create_study(directions=["maximize", "minimize"])
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        study.set_metric_names(["reward", "cost"])
    for x in (0.2, 0.8):
        trial = study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
        trial.set_user_attr("x", x)
        study.tell(trial, [x, x])
    sweep = analysis.load(study)
    assert [str(goal) for goal in sweep.objectives] == ["maximize reward", "minimize cost"]
    assert analysis.front(sweep) == ["t0000", "t0001"]


def test_objectives_that_cannot_be_read_are_one_line(several):
    several.write("sweep.json", several.info | {"objectives": {"a/b": "upwards"}})
    with pytest.raises(ConfigError, match="maximize or minimize"):
        analysis.leaderboard(analysis.load(several.path))


def test_a_named_objective_is_the_only_one(several):
    sweep = analysis.load(several.path, metric=COST)
    assert [str(goal) for goal in sweep.objectives] == ["minimize cost/gpu_seconds"]
    assert analysis.best(sweep) == "t0003"


def test_the_report_of_one_objective_does_not_speak_of_several(builder):
    builder.completed("t0000", 1.0)
    page = render(analysis.load(builder.path))
    assert "The objectives against each other" not in page
    assert page.lower().count("cpus for each gpu:") == 1, "what is not shown is named once"


def test_objectives_that_find_no_place_in_the_leaderboard_are_named_below_it(several):
    many = [f"group/metric_number_{i}" for i in range(6)]
    goals = {"eval/heldout": "maximize", **dict.fromkeys([COST, *many], "minimize")}
    several.write("sweep.json", several.info | {"objectives": goals})
    text = printed(analysis.render_leaderboard(analysis.load(several.path)))
    assert "t0000  completed" in text, "no column is cut short"
    assert "further objectives in leaderboard.csv: group/metric_number_" in " ".join(text.split())
    assert "group/metric_number_5" in text
    assert max(map(len, text.splitlines())) <= 100
