from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tables import header, make_table

from rlhf_core.errors import ConfigError
from search_spaces import Choice, Constant, Float, Int
from sweeps.replay.pack import pack
from sweeps.replay.table import DIVERGED, Table, domain_of, read_table

SMALL: dict[str, Any] = {
    "levels": {"optim.policy.lr": (1e-4, 1e-3, 1e-2), "sync.interval": (1, 2)},
    "tuning_seeds": (1, 2),
    "test_seeds": (101, 102),
    "iterations": 4,
}


@pytest.fixture
def table() -> Table:
    return make_table(**SMALL)


def test_a_table_is_the_same_after_writing_and_reading(table: Table, tmp_path: Path) -> None:
    table.write(tmp_path / "table.parquet")
    again = read_table(tmp_path / "table.parquet")
    assert again.header == table.header
    assert again.runs.keys() == table.runs.keys()
    for key, run in table.runs.items():
        other = again.runs[key]
        assert (other.iterations, other.outcome, other.reason) == (
            run.iterations, run.outcome, run.reason,
        )  # fmt: skip
        assert other.seconds == pytest.approx(run.seconds, rel=1e-6)
        assert [row.keys() for row in other.metrics] == [row.keys() for row in run.metrics]
        values = [value for row in run.metrics for value in row.values()]
        assert [v for row in other.metrics for v in row.values()] == pytest.approx(values, rel=1e-6)


def test_the_file_is_a_plain_frame_for_other_programs(table: Table, tmp_path: Path) -> None:
    table.write(tmp_path / "table.parquet")
    frame = pd.read_parquet(tmp_path / "table.parquet")
    assert list(frame)[:7] == [
        "config",
        "seed",
        "phase",
        "iteration",
        "seconds",
        "outcome",
        "reason",
    ]
    assert {"params.optim.policy.lr", "params.sync.interval"} <= set(frame)
    assert frame["eval/heldout"].dtype == "float32"
    assert set(frame["phase"]) == {"tune", "test"}
    assert set(frame.loc[frame["phase"] == "test", "seed"]) == {101, 102}
    rows = sum(len(run.iterations) for run in table.runs.values())
    assert len(frame) == rows


@pytest.mark.parametrize(
    ("levels", "domain"),
    [
        ((1e-4, 1e-3, 1e-2), Float(1e-4, 1e-2, log=True)),
        ((0.1, 0.2, 0.3), Float(0.1, 0.3)),
        ((1, 2, 4, 8), Int(1, 8, log=True)),
        ((1, 2, 3), Int(1, 3)),
        ((0, 1, 4), Int(0, 4)),
        ((0.5, 1), Float(0.5, 1.0)),
        (("gae", "rloo"), Choice(("gae", "rloo"))),
        ((True, False), Choice((True, False))),
        ((3,), Constant(3)),
    ],
)
def test_the_space_spans_the_levels(levels: tuple[Any, ...], domain: object) -> None:
    assert domain_of(levels) == domain


def test_the_space_has_the_centres_that_presets_know_for_its_model() -> None:
    levels: dict[str, tuple[Any, ...]] = {
        "optim.policy.lr": (1e-4, 1e-2),
        # Beyond the span, of another kind, and a parameter that no preset searches.
        "ppo.kl.coef": (0.1, 0.5),
        "ppo.lam": ("low", "high"),
        "rollout.max_new_tokens": (8, 16),
    }
    space = header(levels=levels).space
    assert space.centres == {"optim.policy.lr": 1e-3, "ppo.kl.coef": 0.1}
    # The size of a model that is not here is not known, nor is a base of another program.
    for base in ({"model": {"policy": "nobody/nothing"}}, {"x": 1}):
        assert header(levels=levels, base=base).space.centres == {}


@pytest.mark.parametrize(
    ("lr", "interval", "number"),
    [(1e-4, 1, 0), (2.9e-4, 1, 0), (3.3e-4, 1, 2), (9e-3, 2, 5), (1e-2, 1, 4), (5e-4, 2, 3)],
)
def test_a_suggestion_moves_to_the_nearest_level_on_the_domains_scale(
    table: Table, lr: float, interval: int, number: int
) -> None:
    params = {"optim.policy.lr": lr, "sync.interval": interval}
    assert table.header.nearest(params) == number
    assert table.header.configurations[number] == table.header.snapped(params)


def test_every_configuration_is_nearest_to_itself() -> None:
    grid = header()
    assert [grid.nearest(point) for point in grid.configurations] == list(range(240))


def test_what_was_not_recorded_is_refused(table: Table) -> None:
    with pytest.raises(ConfigError, match=r"sync\.interval is not given"):
        table.header.nearest({"optim.policy.lr": 1e-3})
    with pytest.raises(ConfigError, match="near none of the recorded values"):
        table.header.nearest({"optim.policy.lr": "high", "sync.interval": 1})
    with pytest.raises(
        ConfigError, match=r"not recorded with seed 5; it was with \[1, 2, 101, 102\]"
    ):
        table.run({"optim.policy.lr": 1e-3, "sync.interval": 1}, 5)
    with pytest.raises(ConfigError, match="tuning and test seeds must differ"):
        header(test_seeds=(3,))


def record(folder: Path, table: Table, skip: int = 0) -> None:
    """A recording of the table, as a recorder writes it."""
    grid = table.header
    folder.mkdir()
    (folder / "grid.json").write_text(
        json.dumps(
            {
                "base": {**grid.base, "budget": {"iterations": grid.iterations}},
                "levels": {key: list(levels) for key, levels in grid.levels.items()},
                "tuning_seeds": list(grid.tuning_seeds),
                "test_seeds": list(grid.test_seeds),
                "objective": grid.objective,
                "tied": {"ppo.clip_range_high": "ppo.clip_range_low"},
            }
        )
    )
    lines = []
    for (number, seed), run in list(table.runs.items())[skip:]:
        spent, rows = 0.0, []
        for i, seconds, metrics in zip(run.iterations, run.seconds, run.metrics, strict=True):
            spent += seconds
            rows.append({"iteration": i, **metrics, "policy/loss": None, "core_seconds": spent})
        line = {
            "config": number,
            "params": grid.configurations[number],
            "seed": seed,
            "phase": "tune",
        }
        ended = {"core_seconds": spent, "outcome": run.outcome, "reason": run.reason}
        lines.append(json.dumps({**line, "iterations": rows, **ended}))
    # A recorder that was killed while it wrote leaves part of a line.
    (folder / "runs.jsonl").write_text("\n".join([*lines, lines[0][:50]]))


def test_a_recording_becomes_a_table(table: Table, tmp_path: Path) -> None:
    record(tmp_path / "raw", table)
    packed = pack(tmp_path / "raw")
    assert packed.header.iterations == 4
    assert packed.header.tied == {"ppo.clip_range_high": "ppo.clip_range_low"}
    assert "core-seconds" in packed.header.cost
    assert packed.runs.keys() == table.runs.keys()
    for key, run in table.runs.items():
        assert packed.runs[key].last("eval/heldout") == run.last("eval/heldout")
        assert packed.runs[key].seconds == pytest.approx(run.seconds)
        assert packed.runs[key].metrics[-1]["cost/cpu_seconds"] == pytest.approx(sum(run.seconds))
    assert any(run.outcome == DIVERGED for run in packed.runs.values())
    kept = pack(tmp_path / "raw", metrics=("eval/heldout",))
    assert set(kept.metrics) == {"eval/heldout", "cost/cpu_seconds"}


def test_an_unfinished_recording_is_refused_with_what_is_missing(
    table: Table, tmp_path: Path
) -> None:
    record(tmp_path / "raw", table, skip=2)
    with pytest.raises(
        ConfigError, match=r"2 of 12 runs on tuning seeds are missing, the first is"
    ):
        pack(tmp_path / "raw")
    with pytest.raises(ConfigError, match=r"a recording holds grid\.json"):
        pack(tmp_path)


def test_no_file_but_a_table_is_read(tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(plain)
    for path, line in ((plain, "no recorded table"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(ConfigError, match=line):
            read_table(path)
