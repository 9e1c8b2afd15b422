"""Command lines that no run can come of: one line, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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


SPACE = {"ppo.kl.coef": {"float": [0.01, 0.1], "log": True}}
LORA = {"extends": "tiny", "model": {"lora": {"rank": 4, "targets": ["q_prj"]}}}
ZERO = {
    "extends": "tiny",
    "optim": {"engine": "deepspeed", "zero_stage": 3},
    "resources": {"layout": "split", "roles": {"rollout": {"memory_gb": 0.2}}},
}
SWEEPS: dict[str, tuple[dict[str, Any], str]] = {
    "a key that does not exist": (
        {"space": {"ppo.clip_low": {"float": [0.1, 0.3]}}},
        "unknown key 'ppo.clip_low'; did you mean 'ppo.clip_range_low'",
    ),
    "bounds reversed": (
        {"space": {"ppo.lam": {"float": [0.99, 0.9]}}},
        "ppo.lam: low < high must hold, got low=0.99 and high=0.9",
    ),
    "a log domain from 0": (
        {"space": {"ppo.kl.coef": {"float": [0, 0.1], "log": True}}},
        "a log domain needs low > 0",
    ),
    "a metric that no trial reports": (
        {"search": {"objective": "eval/heldot"}},
        "no metric 'eval/heldot'; did you mean 'eval/heldout'",
    ),
    "a storage that cannot be reached": (
        {"storage": {"study": "postgresql://joe:secret@127.0.0.1:1/studies"}},
        "storage.study: postgresql://joe:***@127.0.0.1:1/studies cannot be used",
    ),
    "a model that is no policy": (
        {"base": {"extends": "tiny", "model": {"policy": "{model}"}}},
        "is an encoder and a decoder, but a policy continues its prompt",
    ),
    "a target that no module has": (
        {"base": LORA},
        "'q_prj' matches no linear layer of the model; did you mean 'q_proj'",
    ),
    "full weights beside ZeRO-3 that do not fit": (
        {"base": ZERO},
        "resources.roles.rollout.memory_gb: a worker of rollout needs about",
    ),
}


@pytest.mark.parametrize("case", SWEEPS)
def test_a_sweep_that_cannot_work_is_refused_before_anything_starts(
    case: str, builtin_task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "t5"
    model.mkdir()
    kind = {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}
    (model / "config.json").write_text(json.dumps({"model_type": "t5", **kind}))
    (model / "model.safetensors").touch()
    values, line = SWEEPS[case]
    cluster = {"rehearse": {"cpus": 16, "gpus": 4}}
    usual = {"base": "tiny", "space": SPACE, "cluster": cluster}
    text = json.dumps({**usual, **values}).replace("{model}", str(model))
    (tmp_path / "sweep.yaml").write_text(text)
    out = tmp_path / "run"
    assert line in refused(["run", str(tmp_path / "sweep.yaml"), "--out", str(out)], capsys)
    assert not out.exists()


@pytest.mark.parametrize("command", ["status", "best", "report", "resume"])
def test_a_directory_of_a_newer_release_is_not_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((RECORDED / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps({**document, "schema_version": 99}))
    assert "has schema version 99, this " in refused([command, str(tmp_path)], capsys)
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.json"]
