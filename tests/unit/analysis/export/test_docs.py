"""The outputs that docs/export.md shows are those of the commands."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from sweeps.cli import main
from sweeps.load import load_sweep

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/export.md").read_text(encoding="utf-8")
SHOWN = [
    part
    for block in re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
    for part in re.findall(
        r"\$ rlhf-sweep (.*?)\n(.*?)(?=^\$|\Z)", block, flags=re.DOTALL | re.MULTILINE
    )
]


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_page_shows_what_the_command_writes(
    command: str,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "analysis/notebooks/data/quickstart", tmp_path / "runs/first")
    script = re.findall(r"```bash\n(python3.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "train.sh").write_text(script[0])
    assert main(shlex.split(command)) in (0, 2)
    said = capsys.readouterr()
    written = (said.out + said.err).splitlines()
    assert [line for line in output.splitlines() if line not in (*written, "...", "")] == []


def test_the_page_shows_every_framework() -> None:
    assert len(SHOWN) >= 8


def test_the_sweep_of_the_page_goes_on_from_the_imported_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script, sweep = (
        re.findall(rf"```{kind}\n({start}.*?)```", PAGE, flags=re.DOTALL)[0]
        for kind, start in (("bash", "python3"), ("yaml", "name: from-openrlhf"))
    )
    Path("train.sh").write_text(script)
    Path("sweep.yaml").write_text(sweep.replace("path/or/hub-id", "my-org/judge"))
    for name in ("train", "eval", "test"):
        Path(f"{name}.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert main(["import", "train.sh", "--from", "openrlhf", "--out", "start.yaml"]) == 0
    capsys.readouterr()
    loaded = load_sweep("sweep.yaml")
    config = loaded.program.resolve(loaded.base, {"optim.policy.lr": 1e-6})
    assert config["ppo"]["minibatches"] == 8
    assert config["reward"]["heldout_model"] == "my-org/judge"
    assert config["data"]["prompts"] == str(tmp_path / "train.jsonl")
    shares = {
        w.name: w.share.gpus
        for w in loaded.program.placement(loaded.base, {}).workers
        if w.index == 0
    }
    assert shares["critic"] == pytest.approx(0.1)
