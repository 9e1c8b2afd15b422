"""Run directories that something went over: what is wrong is named, and the rest loads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.report import story, tables
from rlhf_core.errors import ConfigError
from sweeps.cli import main

DEEP = "[" * 100_000
HUGE = 10**400


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ["a"]),
        ("created", HUGE),
        ("created", "now"),
        ("command", "run"),
        ("versions", ["torch"]),
        ("versions", {"torch": 2}),
        ("cluster", []),
        ("cluster", {"nodes": {"a": 1}}),
        ("cluster", {"nodes": ["a"]}),
        ("cluster", {"nodes": [{"gpus": "four"}]}),
        ("cluster", {"nodes": [{"gpus": HUGE}]}),
        ("cluster", {"nodes": [{"labels": ["a"]}]}),
        ("config", "tiny"),
        ("config", {"scheduler": "asha"}),
        ("config", {"scheduler": {"kind": "asha", "grace": "5"}}),
        ("config", {"search": 3}),
        ("config", {"selection": [1]}),
        ("config", {"base": [1]}),
        ("constraints", 3),
        ("constraints", [3]),
        ("objective", "reward"),
        ("trials", HUGE),
        ("trials", -1),
        ("trials", True),
    ],
)
def test_a_key_of_the_sweep_with_something_else_in_it(builder: Any, key: str, value: Any) -> None:
    builder.completed("t0000", 1.0)
    builder.write("sweep.json", builder.info | {key: value})
    with pytest.raises(
        ConfigError, match=rf"^sweep\.json: {key}.* must be .*sweep\.json\)"
    ) as caught:
        analysis.load(builder.path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trial", 3),
        ("trial", ["t0001"]),
        ("trial", "../t0001"),
        ("trial", "a\0b"),
        ("trial", "x" * 300),
        ("state", {}),
        ("outcome", ["completed"]),
        ("number", "three"),
        ("number", HUGE),
        ("iteration", 1e300),
        ("iteration", [1]),
        ("iteration", 10**12),
        ("fork_iteration", "x"),
        ("value", "good"),
        ("value", HUGE),
        ("time", []),
        ("time", 1e300),
        ("reason", 3),
        ("parent_id", {}),
        ("durations", [1]),
        ("durations", {"run": "long"}),
    ],
)
def test_a_line_of_the_ledger_with_something_else_in_it(builder: Any, key: str, value: Any) -> None:
    builder.completed("t0000", 1.0)
    line = {"time": builder.time, "trial": "t0001", "number": 1, "state": "queued", key: value}
    builder.append("trials.jsonl", line)
    sweep = analysis.load(builder.path)
    assert list(sweep.trials.index) == ["t0000"]
    (said,) = [w for w in sweep.warnings if w.startswith("trials.jsonl line 5")]
    assert f": {key}" in said
    assert said.endswith("; skipped")


def spoil(path: Path, what: str) -> None:
    """Puts something else in place of a file."""
    path.unlink()
    makers: dict[str, Callable[[], object]] = {
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(path),
        "pipe": lambda: os.mkfifo(path),
        "deep": lambda: path.write_text(DEEP),
        "deep object": lambda: path.write_text('{"a":' * 100_000),
        "bytes": lambda: path.write_bytes(b"\xff\xfe\x00"),
    }
    makers[what]()


DAMAGE = ["folder", "loop", "pipe", "deep", "deep object", "bytes"]


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("name", ["metrics.jsonl", "params.json", "placement.json"])
def test_one_trials_file_is_a_warning(builder: Any, name: str, what: str) -> None:
    builder.completed("t0000", 1.0)
    builder.completed("t0001", 2.0)
    spoil(builder.path / "trials/t0000" / name, what)
    sweep = analysis.load(builder.path)
    assert any(w.startswith(f"trials/t0000/{name}") for w in sweep.warnings)
    assert list(sweep.trials.index) == ["t0000", "t0001"]
    assert analysis.best(sweep) == "t0001"


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("name", ["sweep.json", "space.json"])
def test_a_file_of_the_whole_sweep_is_a_line(builder: Any, name: str, what: str) -> None:
    builder.completed("t0000", 1.0)
    spoil(builder.path / name, what)
    with pytest.raises(ConfigError, match=name) as caught:
        analysis.load(builder.path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("what", ["folder", "loop", "pipe"])
def test_a_ledger_that_cannot_be_read_is_a_line(builder: Any, what: str) -> None:
    builder.completed("t0000", 1.0)
    spoil(builder.path / "trials.jsonl", what)
    with pytest.raises(ConfigError, match=r"^trials\.jsonl: it "):
        analysis.load(builder.path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("placement.json", {"bundles": 3}),
        ("placement.json", {"bundles": [3]}),
        ("placement.json", {"bundles": [{"index": []}]}),
        ("placement.json", {"bundles": [{"index": 0, "node": ["n1"]}]}),
        ("placement.json", {"bundles": [{"index": 0, "gpus": "one"}]}),
        ("placement.json", {"bundles": [{"gpus": 1}]}),
        ("placement.json", {"bundles": [{"index": HUGE}]}),
        ("placement.json", {"workers": {"a": 1}}),
        ("placement.json", {"workers": [{"name": "a", "index": 0, "bundle": [0]}]}),
        ("placement.json", {"workers": [{"name": "a", "index": 0, "bundle": 0, "roles": 3}]}),
        ("placement.json", {"services": ["a"]}),
        ("placement.json", {"services": {"reward": ["a"]}}),
        ("params.json", {"sync.interval": HUGE}),
    ],
)
def test_a_trials_document_of_another_shape_is_a_warning(
    builder: Any, name: str, content: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    builder.completed("t0000", 1.0)
    builder.write(f"trials/t0000/{name}", content)
    sweep = analysis.load(builder.path)
    (key,) = content
    (said,) = [w for w in sweep.warnings if w.startswith(f"trials/t0000/{name}: {key}")]
    assert said.endswith("; skipped")
    for command in ("status", "best", "inspect"):
        assert main([command, str(builder.path)]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_numbers_beyond_all_bounds_among_the_metrics(builder: Any) -> None:
    builder.completed("t0000", 1.0)
    file = builder.path / "trials/t0000/metrics.jsonl"
    lines = [{"iteration": 3, "eval/heldout": HUGE}, {"iteration": HUGE}, {"iteration": "4"}, {}]
    builder.append("trials/t0000/metrics.jsonl", *lines)
    sweep = analysis.load(builder.path)
    assert sweep.iterations["iteration"].tolist() == [0, 2, 3]
    said = [w for w in sweep.warnings if w.startswith("trials/t0000/metrics.jsonl line")]
    assert len(said) == 3, file.read_text()


@pytest.mark.parametrize(
    "parameters", [3, [3], {"a": 3}, [{"key": "a", "low": "x"}], [{"key": "a", "values": 3}]]
)
def test_a_space_of_another_shape_is_a_line(builder: Any, parameters: Any) -> None:
    builder.write("space.json", {"schema_version": 1, "parameters": parameters})
    with pytest.raises(ConfigError, match=r"^space\.json: parameters"):
        analysis.load(builder.path)


@pytest.mark.parametrize(
    "stored", [DEEP, json.dumps({"trial": "t0000", "judgement": {"gain": HUGE}})]
)
def test_a_damaged_judgement_is_none(builder: Any, stored: str) -> None:
    builder.completed("t0000", 1.0)
    (builder.path / "best.json").write_text(stored)
    sweep = analysis.load(builder.path)
    assert story.judgement(sweep, "t0000") is None
    assert tables.checklist(sweep)
    assert main(["best", str(builder.path)]) == 0
