from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweeps.cli import build_parser, main


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["statsu"], "did you mean 'status'"),
        (["run"], "FILE|PRESET"),
        (["run", "quickstart", "--set", "search.trials"], "KEY=VALUE"),
        (["run", "quickstart", "--set", "search.trails=3"], "did you mean 'search.trials'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(argv)
    except SystemExit as stop:
        code = int(str(stop.code))
    err = capsys.readouterr().err
    assert code == 2
    assert line in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["status", "best"])
def test_a_folder_that_is_no_run_directory_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 2
    assert "sweep.json" in capsys.readouterr().err


def test_plan_says_what_fits_and_exits_2_where_nothing_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "rehearsal"]) == 0
    out = capsys.readouterr().out
    assert "2 trials of 4 iterations" in out
    assert "sum 20.1 CPUs, 5 GPUs, 160 GB" in out
    assert main(["plan", "rehearsal", "--set", "cluster.rehearse.gpus=0"]) == 2
    assert "no node can hold bundle" in capsys.readouterr().out


def test_schema_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert "search" in json.loads(capsys.readouterr().out)["properties"]


def test_train_refuses_a_folder_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").touch()
    assert main(["train", "tiny", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["train", "tiny", "--out", str(tmp_path / "new"), "--resume"]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "train", "status", "best", "prepare", "plan", "doctor", "schema"):
        with pytest.raises(SystemExit) as stop:
            build_parser().parse_args([command, "--help"])
        assert stop.value.code == 0
    assert "TrialConfig" in capsys.readouterr().out
