"""Metrics by way of Parquet, several sweeps as one, frames out again."""

from __future__ import annotations

import json
import os
import shutil

import pandas as pd
import pytest
from run_directories import Builder

import analysis
from analysis.metrics_files import CACHE
from rlhf_core.errors import ConfigError


def equal(first, second):
    for name in ("trials", "iterations", "placements", "events"):
        pd.testing.assert_frame_equal(getattr(first, name), getattr(second, name))
    assert first.warnings == second.warnings


def test_from_parquet_is_what_the_lines_say(every_outcome):
    every_outcome.report("t0008", 4, note="text", eval__heldout=None)
    with (every_outcome.path / "trials/t0007/metrics.jsonl").open("a") as file:
        file.write('{"iteration": 2, "eval/hel')
    fresh = analysis.load(every_outcome.path, cache=False)
    assert not (every_outcome.path / CACHE).exists()
    equal(fresh, analysis.load(every_outcome.path, cache=True))
    before = (every_outcome.path / CACHE).stat().st_mtime_ns
    equal(fresh, analysis.load(every_outcome.path))
    assert (every_outcome.path / CACHE).stat().st_mtime_ns == before
    assert any("torn last line" in line for line in fresh.warnings)
    assert any("note" in line for line in fresh.warnings)


def test_the_parquet_file_is_what_is_read(builder):
    builder.completed("t0000", 1.0)
    analysis.load(builder.path, cache=True)
    lines = builder.path / "trials/t0000/metrics.jsonl"
    stat = lines.stat()
    lines.write_bytes(b"x" * stat.st_size)
    os.utime(lines, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert analysis.load(builder.path).iterations["eval/heldout"].tolist() == [0.0, 1.0]
    assert len(analysis.load(builder.path, cache=False).iterations) == 0


@pytest.mark.parametrize("change", ["size", "time", "more", "gone"])
def test_a_change_of_any_file_is_seen(builder, change):
    builder.completed("t0000", 1.0)
    builder.completed("t0001", 2.0)
    analysis.load(builder.path, cache=True)
    lines = builder.path / "trials/t0001/metrics.jsonl"
    if change == "size":
        builder.report("t0001", 3, eval__heldout=5.0)
    elif change == "time":
        stat = lines.stat()
        text = lines.read_text().replace('"eval/heldout": 2.0', '"eval/heldout": 5.0')
        lines.write_text(text)
        assert lines.stat().st_size == stat.st_size
        os.utime(lines, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    elif change == "more":
        builder.completed("t0002", 5.0)
    else:
        lines.unlink()
    found = analysis.load(builder.path)
    equal(found, analysis.load(builder.path, cache=False))
    assert (found.trials["final.eval/heldout"].max() == 5.0) == (change != "gone")


@pytest.mark.parametrize("content", [b"", b"PAR1 torn", None])
def test_a_damaged_parquet_file_is_no_obstacle(builder, content):
    builder.completed("t0000", 1.0)
    analysis.load(builder.path, cache=True)
    whole = (builder.path / CACHE).read_bytes()
    (builder.path / CACHE).write_bytes(whole[: len(whole) // 2] if content is None else content)
    assert analysis.load(builder.path).trials.loc["t0000", "value"] == 1.0


def test_a_folder_that_cannot_be_written_loads(builder, monkeypatch):
    builder.completed("t0000", 1.0)
    # A directory in the file's place fails for root as well, whom permissions do not stop.
    (builder.path / CACHE).mkdir()
    (builder.path / CACHE / "x").touch()
    assert analysis.load(builder.path, cache=True).trials.loc["t0000", "value"] == 1.0
    assert [p.name for p in builder.path.iterdir() if p.name.endswith(".part")] == []


def test_little_is_not_stored_and_neither_is_what_is_being_written(builder, monkeypatch):
    builder.completed("t0000", 1.0)
    analysis.load(builder.path)
    assert not (builder.path / CACHE).exists()
    monkeypatch.setattr("analysis.metrics_files._WORTH_BYTES", 1)
    builder.begin("t0001")
    analysis.load(builder.path)
    assert not (builder.path / CACHE).exists()
    builder.end("t0001", "lost")
    analysis.load(builder.path)
    assert (builder.path / CACHE).exists()


def test_the_unfinished_are_named(every_outcome):
    (line,) = analysis.load(every_outcome.path).warnings
    assert line == (
        "unfinished: 7 of 10 trials have ended; queued t0009; started t0008; interrupted t0007"
    )
    every_outcome.write("sweep.json", every_outcome.info | {"trials": 12})
    assert analysis.load(every_outcome.path).warnings[0].endswith("; 2 not begun")


def test_a_finished_sweep_warns_of_nothing(simulated):
    assert analysis.load(simulated(3)).warnings == ()


@pytest.fixture
def two(simulated, tmp_path):
    """Two sweeps of three and four trials, of one name."""
    first, second = simulated(3), simulated(4)
    return first, second


def test_several_sweeps_are_one(two):
    both = analysis.load(list(two))
    assert list(both.trials["sweep"].cat.categories) == ["sim3", "sim4"]
    assert both.trials.groupby("sweep", observed=True).size().tolist() == [3, 4]
    assert list(both.trials.index[:2]) == ["sim3/t0000", "sim3/t0001"]
    alone = [analysis.load(path) for path in two]
    assert len(both.iterations) == sum(len(s.iterations) for s in alone)
    assert set(both.iterations["trial"].cat.categories) == set(both.trials.index)
    for frame, kinds in (("trials", alone[0].trials.dtypes), ("events", alone[0].events.dtypes)):
        found = getattr(both, frame).dtypes
        assert {c: str(found[c]) for c in kinds.index} == {c: str(k) for c, k in kinds.items()}
    value = alone[1].trials.loc["t0003", "params.optim.policy.lr"]
    assert both.trials.loc["sim4/t0003", "params.optim.policy.lr"] == value
    assert (both.name, both.metric, both.asked) == ("sim3 + sim4", "eval/heldout", 7)
    assert analysis.best(both) in both.trials.index
    assert analysis.plot_learning_curves(both).axes
    assert analysis.plot_parallel(both).axes


def test_a_pattern_and_a_list_of_one(two, tmp_path):
    (tmp_path / "else").mkdir()
    equal(analysis.load(str(tmp_path / "sim*")), analysis.load(list(two)))
    equal(analysis.load([two[0]]), analysis.load(two[0]))
    with pytest.raises(ConfigError, match="matches"):
        analysis.load(str(tmp_path / "none*"))


def test_sweeps_of_different_goals_need_one_named(two):
    info = json.loads((two[1] / "sweep.json").read_text())
    goal = {"metric": "reward/proxy", "direction": "maximize"}
    (two[1] / "sweep.json").write_text(json.dumps(info | {"objective": goal, "name": "b"}))
    both = analysis.load(list(two))
    with pytest.raises(ConfigError, match="objective"):
        _ = both.metric
    aimed = analysis.load(list(two), metric="reward/proxy", direction="maximize")
    assert aimed.trials["value"].equals(aimed.trials["final.reward/proxy"].rename("value"))
    with pytest.raises(ConfigError, match=r"reward/proxi.*reward/proxy"):
        analysis.load(list(two), metric="reward/proxi", direction="maximize")


def test_a_sweep_without_trials_joins(two, builder):
    both = analysis.load([builder.path, two[0]])
    assert len(both.trials) == 3
    assert both.trials["number"].dtype == "Int64"


def test_equal_names_give_way_to_directories_and_those_to_numbers(tmp_path):
    places = ["a", "b", "x/run", "y/run"]
    for place in places:
        Builder(tmp_path / place).completed("t0000", 1.0)
    ids = {
        pair: list(analysis.load([tmp_path / places[i] for i in pair]).trials.index)
        for pair in ((0, 1), (2, 3))
    }
    assert ids == {(0, 1): ["a/t0000", "b/t0000"], (2, 3): ["run/t0000", "run#2/t0000"]}


def test_resources_are_summed_over_bundles(builder):
    builder.begin("t0000")
    builder.write(
        "trials/t0000/placement.json",
        {
            "bundles": [{"index": 0, "cpus": 0.1}, {"index": 1, "gpus": 1.0}],
            "workers": [{"name": name, "bundle": 1} for name in ("rollout", "learner")],
        },
    )
    placements = analysis.load(builder.path).placements
    assert placements["gpus"].sum() == 2
    assert placements.drop_duplicates(["trial", "bundle"])["gpus"].sum() == 1


def test_a_sweep_is_shown_in_a_line(every_outcome, two):
    shown = repr(analysis.load(every_outcome.path))
    assert shown.startswith("Sweep('synthetic': 3 not ended, 2 completed, ")
    assert "1 failed" in shown
    assert shown.endswith("; best t0001, eval/heldout 2)")
    assert len(shown) < 160
    assert "; best sim" in repr(analysis.load(list(two)))
    info = {k: v for k, v in every_outcome.info.items() if k != "objective"}
    every_outcome.write("sweep.json", info)
    assert "best" not in repr(analysis.load(every_outcome.path))


def test_a_sweep_that_has_just_begun_is_shown_too(builder):
    assert repr(analysis.load(builder.path)) == "Sweep('synthetic': no trials)"


def test_every_duration_that_a_sweep_writes_has_a_column(builder):
    """What the driver writes, as far as a trial of its own has them, without an empty one beside."""
    builder.completed("t0000", 1.0)
    spent = analysis.load(builder.path).trials.filter(like="duration.")
    assert list(spent) == [f"duration.{name}" for name in ("queue", "start", "load", "run", "stop")]
    assert spent.notna().all(axis=None)


def test_parquet_and_csv_out_and_back(every_outcome, tmp_path):
    sweep = analysis.load(every_outcome.path)
    *written, document = sweep.to_parquet(tmp_path / "out")
    assert document.name == "packed.json"
    assert [p.name for p in written] == [
        "trials.parquet", "iterations.parquet", "placements.parquet", "events.parquet",
    ]  # fmt: skip
    for path in written:
        pd.testing.assert_frame_equal(
            pd.read_parquet(path), getattr(sweep, path.stem), check_categorical=False
        )
    for path in sweep.to_csv(tmp_path / "out"):
        assert len(pd.read_csv(path)) == len(getattr(sweep, path.stem))
    assert pd.read_csv(tmp_path / "out/trials.csv")["trial"].tolist() == list(sweep.trials.index)


def test_a_packed_sweep_loads_as_it_was(every_outcome, tmp_path):
    sweep = analysis.load(every_outcome.path)
    sweep.to_parquet(tmp_path / "packed")
    packed = analysis.load(tmp_path / "packed")
    for name in ("trials", "iterations", "placements", "events"):
        pd.testing.assert_frame_equal(
            getattr(packed, name), getattr(sweep, name), check_categorical=False
        )
    assert (packed.info, packed.space, packed.warnings) == (sweep.info, sweep.space, sweep.warnings)
    assert analysis.best(packed) == analysis.best(sweep)
    assert repr(packed) == repr(sweep)
    assert analysis.render_leaderboard(packed).row_count > 0
    assert len(analysis.load(str(tmp_path / "pack*")).trials) == len(sweep.trials)


def test_a_sweep_named_twice_is_read_once(builder, tmp_path):
    builder.completed("t0000", 1.0)
    link = tmp_path / "link"
    link.symlink_to(builder.path)
    sweep = analysis.load([builder.path, str(builder.path), link])
    assert list(sweep.trials.index) == ["t0000"]
    assert [w for w in sweep.warnings if "more than once" in w] == [
        f"{builder.path} was named more than once; it is read once",
        f"{link} was named more than once; it is read once",
    ]


def test_a_damaged_packed_sweep_is_named(builder, tmp_path):
    builder.completed("t0000", 1.0)
    analysis.load(builder.path).to_parquet(tmp_path)
    (tmp_path / "events.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"events\.parquet of the packed sweep"):
        analysis.load(tmp_path)
    (tmp_path / "packed.json").write_text('{"schema_version": 99}')
    with pytest.raises(ConfigError, match="schema version 99"):
        analysis.load(tmp_path)


def test_categories_of_several_types_go_to_parquet_as_text(builder, tmp_path):
    builder.completed("t0000", 1.0, params={"mixed": 4})
    builder.completed("t0001", 1.0, params={"mixed": None})
    analysis.load(builder.path).to_parquet(tmp_path)
    frame = pd.read_parquet(tmp_path / "trials.parquet")
    assert frame["params.mixed"].tolist() == ["4", "null"]


def test_a_copied_directory_reads_its_copy_of_the_parquet_file(builder, tmp_path):
    builder.completed("t0000", 1.0)
    analysis.load(builder.path, cache=True)
    copy = shutil.copytree(builder.path, tmp_path / "copy")
    equal(analysis.load(copy), analysis.load(builder.path))
