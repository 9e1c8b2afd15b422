"""Points to start from: ready-made ones, a former run's best trials, a CSV file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sweeps.load
from rlhf_core.config import known_keys
from rlhf_core.config.overrides import nest
from rlhf_core.errors import ConfigError
from search_spaces import Choice, Constant, Float, Int, Parameter, Space
from sweeps.config import SearchConfig
from sweeps.points import KNOWN, resolve_points

RECORDED = Path(__file__).resolve().parents[3] / "analysis/notebooks/data/quickstart"
SPACE = Space(
    {
        "ppo.clip_range_high": Parameter(Float(0.1, 0.4)),
        "optim.policy.lr": Parameter(Float(1e-7, 1e-5, log=True)),
        "ppo.epochs": Parameter(Int(1, 4)),
        "ppo.lam": Parameter(Choice((0.9, 0.95, 1.0))),
        "ppo.kl.target_per_token": Parameter(Choice((None, 0.1))),
        "ppo.filter_groups": Parameter(Choice((True, False))),
        "seed": Parameter(Constant(7)),
    }
)


def resolve(*points: Any, **search: Any) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    return resolve_points(SearchConfig(points=points, **search), SPACE)


def refused(*points: Any) -> list[str]:
    with pytest.raises(ConfigError) as info:
        resolve(*points)
    return list(info.value.problems)


def test_ready_made_points_hold_known_options_with_values_they_may_have() -> None:
    assert all(set(point) <= set(known_keys()) for point in KNOWN.values())
    for name, point in KNOWN.items():
        loaded = sweeps.load.load_sweep({"base": {"extends": "tiny", **nest(point)}})
        assert loaded.program.check(loaded.base, {}) == [], name


def test_a_name_gives_that_library_s_defaults_for_what_is_searched() -> None:
    (point,), notes = resolve("trl")
    assert point == {
        "ppo.clip_range_high": 0.2,
        "optim.policy.lr": 3e-6,
        "ppo.epochs": 4,
        "ppo.lam": 0.95,
    }
    assert notes == []


def test_a_default_outside_the_space_is_sampled_and_a_note_says_so() -> None:
    space = Space({"ppo.lam": Parameter(Float(0.9, 0.99)), "ppo.epochs": Parameter(Int(1, 2))})
    points, notes = resolve_points(SearchConfig(points=("verl", "trl")), space)
    assert points == ({"ppo.epochs": 1}, {"ppo.lam": 0.95})
    assert notes == [
        "search.points[0]: verl: ppo.lam = 1.0 lies outside "
        "Float(low=0.9, high=0.99, log=False, step=None), and is sampled",
        "search.points[1]: trl: ppo.epochs = 4 lies outside "
        "Int(low=1, high=2, log=False, step=1), and is sampled",
    ]
    other = Space({"x": Parameter(Float(0.0, 1.0))})
    points, notes = resolve_points(SearchConfig(points=("verl",)), other)
    assert points == ()
    assert notes == [
        "search.points[0]: verl has none of the searched parameters, and is passed over"
    ]


def test_points_of_the_user_s_own_must_lie_in_the_space() -> None:
    assert refused({"ppo.clip_range_hihg": 0.2}, {"ppo.epochs": 9}, "openrlfh", "no/such.csv") == [
        "search.points[0]: 'ppo.clip_range_hihg' is not searched; did you mean 'ppo.clip_range_high'?",
        "search.points[1]: ppo.epochs = 9 lies outside Int(low=1, high=4, log=False, step=1)",
        "search.points[2]: 'openrlfh' is none of openrlhf, verl, trl, no run directory and no file; "
        "did you mean 'openrlhf'?",
        "search.points[3]: 'no/such.csv' is none of openrlhf, verl, trl, no run directory and no file",
    ]


def test_a_former_run_gives_its_best_trials_that_kept_its_constraints() -> None:
    info = json.loads((RECORDED / "sweep.json").read_text())
    best = json.loads((RECORDED / "best.json").read_text())["trial"]
    space = sweeps.load.load_sweep("quickstart").space
    search = SearchConfig(points=(str(RECORDED),), points_per_run=2)
    points, notes = resolve_points(search, space)
    assert notes == []
    assert len(points) == 2
    assert points[0] == json.loads((RECORDED / f"trials/{best}/params.json").read_text())
    assert info["constraints"]


def run_directory(folder: Path, direction: str = "minimize") -> Path:
    folder.mkdir()
    info = {"objective": {"metric": "a/b", "direction": direction}, "constraints": ["c/d <= 1"]}
    (folder / "sweep.json").write_text(json.dumps(info))
    ledger = []
    ends = {"t0": ("completed", 3.0, 0.5), "t1": ("completed", 1.0, 0.5), "t2": ("stopped", 0.1, 0)}
    ends |= {"t3": ("completed", 0.2, 5.0), "t4": ("completed", None, 0.5)}
    for number, (trial, (outcome, value, kept)) in enumerate(ends.items()):
        (folder / "trials" / trial).mkdir(parents=True)
        (folder / f"trials/{trial}/params.json").write_text(json.dumps({"ppo.epochs": number + 1}))
        curve = [{"iteration": 1, "c/d": 9.0}, {"iteration": 2, "c/d": kept}]
        text = "".join(json.dumps(line) + "\n" for line in curve)
        (folder / f"trials/{trial}/metrics.jsonl").write_text(text + '{"torn')
        ledger += [{"trial": trial, "outcome": None, "value": None}]
        ledger += [{"trial": trial, "outcome": outcome, "value": value}]
    (folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ledger))
    return folder


def test_trials_that_failed_or_broke_a_rule_are_none_of_the_best(tmp_path: Path) -> None:
    low, _ = resolve(str(run_directory(tmp_path / "low")))
    assert [point["ppo.epochs"] for point in low] == [2, 1]
    high, _ = resolve(str(run_directory(tmp_path / "high", "maximize")), points_per_run=1)
    assert [point["ppo.epochs"] for point in high] == [1]


def test_a_folder_that_is_no_run_is_refused_in_a_line(tmp_path: Path) -> None:
    (line,) = refused(str(tmp_path))
    assert "cannot be read as a run directory" in line
    broken = run_directory(tmp_path / "run")
    (broken / "trials.jsonl").write_text("")
    (line,) = refused(str(broken))
    assert "no trial of" in line


def table(tmp_path: Path, text: str) -> str:
    path = tmp_path / "points.csv"
    path.write_text(text)
    return str(path)


def test_a_csv_file_gives_a_point_for_each_row(tmp_path: Path) -> None:
    header = "trial,params.ppo.epochs,ppo.lam,ppo.kl.target_per_token,ppo.filter_groups,seed\n"
    points, notes = resolve(table(tmp_path, header + "t0,2.0,1,null,true,7\nt1,,0.95,0.1,False,\n"))
    assert points == (
        {
            "ppo.epochs": 2,
            "ppo.lam": 1.0,
            "ppo.kl.target_per_token": None,
            "ppo.filter_groups": True,
            "seed": 7,
        },
        {"ppo.lam": 0.95, "ppo.kl.target_per_token": 0.1, "ppo.filter_groups": False},
    )
    assert notes == []
    assert isinstance(points[0]["ppo.epochs"], int)


def test_a_leaderboard_is_a_csv_file_of_points() -> None:
    space = sweeps.load.load_sweep("quickstart").space
    search = SearchConfig(points=(str(RECORDED / "leaderboard.csv"),))
    points, _ = resolve_points(search, space)
    rows = (RECORDED / "leaderboard.csv").read_text().splitlines()[1:]
    assert len(points) == len(rows)
    assert all(space.check(point) == [] for point in points)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs a header"),
        ("ppo.epochs\n", "needs a header"),
        ("a,b\n1,2\n", "needs a header"),
        ("ppo.epochs,ppo.lamb\n1,2\n", "has a column 'ppo.lamb'; did you mean 'ppo.lam'?"),
        ("ppo.epochs\nmany\n", "line 2: ppo.epochs = 'many' is no value of Int"),
    ],
)
def test_a_csv_file_that_is_wrong_is_refused_in_a_line(
    tmp_path: Path, text: str, said: str
) -> None:
    (line,) = refused(table(tmp_path, text))
    assert said in line
    assert len(line.splitlines()) == 1


def test_a_loaded_sweep_has_its_points_in_full() -> None:
    loaded = sweeps.load.load_sweep("quickstart", {"search.points": [str(RECORDED), "verl"]})
    assert len(loaded.config.search.points) == 4
    assert all(isinstance(point, dict) for point in loaded.config.search.points)
    # A learning rate for a model of billions of parameters lies outside that of a tiny one.
    assert any("verl: optim.policy.lr = 1e-06 lies outside" in note for note in loaded.notes)
