"""Command lines that no run can come of: one line, exit code 2, nothing written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeps.cli import main

RECORDED = Path(__file__).resolve().parents[3] / "analysis/notebooks/data/quickstart"
SCRIPT = "python3 -m openrlhf.cli.train_ppo_ray --actor.adam.lr 2e-6\n"


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command line is refused."""
    try:
        code = main(argv)
    except SystemExit as stop:
        code = int(str(stop.code))
    said = capsys.readouterr().err.strip()
    assert code == 2, said
    assert len(said.splitlines()) == 1, said
    return said


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT)
    return file


COMMANDS = {
    "yaml": ["export", str(RECORDED), "--to", "yaml"],
    "csv": ["export", str(RECORDED), "--to", "csv"],
    "import": ["import", "{script}", "--from", "openrlhf"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_is_replaced_only_where_that_is_asked_for(
    command: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.txt"
    out.write_text("mine")
    argv = [word.format(script=script) for word in COMMANDS[command]] + ["--out", str(out)]
    assert "add --overwrite" in refused(argv, capsys)
    assert out.read_text() == "mine"
    assert main([*argv, "--overwrite"]) == 0
    assert out.read_text() != "mine"
    assert sorted(tmp_path.iterdir()) == sorted([out, script])


@pytest.mark.parametrize("command", [*COMMANDS, "report"])
def test_a_folder_or_a_pipe_is_no_file_to_write(
    command: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = COMMANDS.get(command, ["report", str(RECORDED)])
    argv = [word.format(script=script) for word in argv]
    assert "is a folder" in refused([*argv, "--out", str(tmp_path)], capsys)
    os.mkfifo(tmp_path / "pipe")
    more = [] if command == "report" else ["--overwrite"]
    assert "a pipe" in refused([*argv, "--out", str(tmp_path / "pipe"), *more], capsys)


@pytest.mark.parametrize("path", ["~nobody-of-that-name/x", "a\0b", "x" * 300])
@pytest.mark.parametrize(
    "argv",
    [
        ["run", "{path}"],
        ["run", "quickstart", "--out", "{path}"],
        ["plan", "quickstart", "--set", "base.model.policy={path}"],
        ["train", "{path}"],
        ["train", "tiny", "--out", "{path}"],
        ["train", "tiny", "--save-model", "{path}"],
        ["status", "{path}"],
        ["best", "{path}"],
        ["samples", "{path}"],
        ["inspect", "{path}"],
        ["replay", "{path}"],
        ["report", "{path}"],
        ["export", "{path}", "--to", "yaml"],
        ["export", str(RECORDED), "--to", "yaml", "--out", "{path}"],
        ["import", "{path}", "--from", "trl"],
        ["prepare", "--data", "{path}", "--out", "x"],
    ],
    ids=lambda argv: " ".join(argv[:1] + argv[2:3]) if isinstance(argv, list) else None,
)
def test_what_no_file_can_be_called(
    argv: list[str], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused([word.format(path=path) for word in argv], capsys)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["import", "{script}", "--from", "verll"], "there is no 'verll'; did you mean 'verl'?"),
        (["import", "{script}", "--from", "openrlhf", "--version", ""], "openrlhf '' is not known"),
        (["export", str(RECORDED), "--to", "yaml", "--trial", "../trials/t0001"], "has no trial"),
        (["export", str(RECORDED), "--to", "csv", "--out", "x", "--version", ""], "leave out"),
        (["train", "tiny", "--resume"], "add --out DIR"),
        (["train", "tiny", "--save-model", "{script}/model"], "train.sh, a file"),
        (["train", "tiny", "--out", "{script}/out"], "train.sh, a file"),
    ],
)
def test_options_that_name_nothing(
    argv: list[str], line: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in refused([word.format(script=script) for word in argv], capsys)


def test_a_folder_in_place_of_a_file_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.json").mkdir()
    assert str(tmp_path) in refused(["status", str(tmp_path)], capsys)
