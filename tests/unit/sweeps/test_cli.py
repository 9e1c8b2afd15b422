from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import pytest

from sweeps.cli import build_parser, main

RECORDED = Path(__file__).resolve().parents[3] / "analysis/notebooks/data/quickstart"


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


@pytest.mark.parametrize("command", ["status", "best", "samples"])
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
    out = capsys.readouterr().out
    assert "no node can hold bundle" in out
    assert "0 at a time (logical GPUs): " in out.splitlines()[0]
    assert "at once" not in out
    assert "unused" not in out


def test_a_line_of_plan_is_one_line_in_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--set", "base.reward.function=sweep_helpers:brevity"]
    long = ["--set", f"name={'n' * 60}", "--set", "cluster.rehearse.gpus=0"]
    assert main(["plan", "quickstart", *own, *long]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("0 at a time (logical GPUs): the nodes hold none")
    assert lines[1].startswith("note: objective eval/heldout")
    assert lines[1].endswith("for prompts of your own")


def test_plan_counts_what_is_sampled_ahead(
    builtin_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mode = ["--set", "base.sync.mode=async", "--set", "base.sync.max_staleness=3"]
    assert main(["plan", "rehearsal", *mode, "--set", "space={}", "--set", "search.points=[]"]) == 0
    out = capsys.readouterr().out
    assert "each 4 weight versions of" in out
    assert "MB of batches sampled ahead, with a margin" in out


def test_plan_says_why_no_more_run_and_orders_shapes_by_their_parameter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "quickstart", "--set", "search.max_concurrent=1"]) == 0
    out = capsys.readouterr().out
    assert "1 at a time (logical GPUs): search.max_concurrent is 1" in out
    ratios = [line.split("=")[1].strip() for line in out.splitlines() if "cpus_per_gpu =" in line]
    assert ratios == ["2", "4", "8"]
    assert "1 GPU, 32 GB" in out
    assert "GPU-hours" not in out


def test_plan_draws_where_the_roles_go_and_sizes_the_object_store(
    builtin_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = [f"base.resources.roles.{role}.workers=1" for role in ("learner", "critic")]
    one = [part for setting in one for part in ("--set", setting)]
    assert main(["plan", "rehearsal", "--set", "base.resources.layout=colocated", *one]) == 0
    out = capsys.readouterr().out
    assert "node 0: 32 CPUs, 4 GPUs, 256 GB" in out
    assert "learner 0                1.33  0.333      32  |    ##|" in out
    assert "holds nothing: node 1, node 2" in out
    assert "each 2 weight versions of 1." in out


def test_plan_says_what_each_worker_needs_of_its_memory(
    builtin_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "quickstart", "--set", "search.max_concurrent=1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "GPU memory: " in line]
    assert lines[0].startswith("  GPU memory: the process needs 0.")
    assert " GB: weights 0.0" in lines[0]
    cpu = ["--set", "base.resources.roles.learner.gpus=0"]
    assert main(["plan", "rehearsal", *cpu, "--set", "space={}", "--set", "search.points=[]"]) == 0
    out = capsys.readouterr().out
    # One for each placement of the space.
    line = next(line for line in out.splitlines() if "memory: a worker of learner" in line)
    assert line.startswith("  memory: a worker of learner needs 0.")
    assert " of 32.00 GB: " in line
    assert line.endswith(", process 0.45")
    little = ["--set", "base.resources.roles.learner.memory_gb=0.3"]
    assert main(["plan", "rehearsal", *cpu, *little]) == 2
    line = capsys.readouterr().err.splitlines()[0]
    assert "resources.roles.learner.memory_gb: a worker of learner needs about 0.5 GB" in line


def test_plan_names_the_bundles_of_a_trial_that_fits_nowhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    labels = [
        "--set",
        "base.resources.labels.zone=eu",
        "--set",
        "cluster.rehearse.labels=[{zone: us}]",
    ]
    assert main(["plan", "rehearsal", *labels]) == 2
    out = capsys.readouterr().out
    assert "split, PACK, fits nowhere" in out
    assert "bundle 3  learner 0: 4 CPUs, 1 GPU, 32 GB memory" in out
    assert "no node has the label zone eu of bundle 0" in out


def test_inspect_draws_a_recorded_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(RECORDED)]) == 0
    out = capsys.readouterr().out
    assert "node 0: 16 CPUs, 4 GPUs, 256 GB" in out
    assert "t0006  stopped     0 all roles" in out
    assert "Mean busy share of the workers of each role" in out
    assert max(map(len, out.splitlines())) <= 100
    assert main(["inspect", str(RECORDED), "--trial", "t0003"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("t0003: layout fused, PACK, 1 bundle on 1 of 1 node")
    assert "t0004" not in out


def test_inspect_says_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect"]) == 2
    assert main(["inspect", str(tmp_path), "--address", "auto"]) == 2
    assert main(["inspect", str(tmp_path)]) == 2
    assert main(["inspect", str(RECORDED), "--trial", "t001"]) == 2
    err = capsys.readouterr().err.strip().splitlines()
    assert len(err) == 4
    assert "one of the two" in err[0]
    assert "sweep.json" in err[2]
    assert "did you mean 't0011' or 't0010'" in err[3]


def test_plan_says_which_reward_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "quickstart"]) == 0
    assert "note:" not in capsys.readouterr().out
    assert main(["plan", "quickstart", "--set", "base.reward.function=sweep_helpers:brevity"]) == 0
    assert "objective eval/heldout is measured by" in capsys.readouterr().out


def test_a_function_beside_the_sweep_is_found_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside_the_sweep.py").write_text(
        "def score(p, r, m):\n    return [0.0] * len(r)\n"
    )
    monkeypatch.chdir(tmp_path)
    # The console script has its own folder on the path, not the working directory.
    monkeypatch.setattr("sys.path", [p for p in sys.path if p not in ("", str(tmp_path))])
    assert main(["plan", "quickstart", "--set", "base.reward.function=beside_the_sweep:score"]) == 0
    capsys.readouterr()


def test_an_error_raised_on_purpose_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no port is free\nand more")

    monkeypatch.setattr("ray.init", fail)
    out = tmp_path / "new" / "run"
    monkeypatch.setattr("sweeps.sweep.Sweep._prepare", lambda *_: None)
    assert main(["run", "quickstart", "--out", str(out)]) == 1
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert "Ray must start on this machine, but raised OSError: no port is free" in err
    assert not (tmp_path / "new").exists()


def test_best_of_an_interrupted_sweep_points_at_the_trial_s_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(RECORDED, run)
    for name in ("best.yaml", "best.json"):
        (run / name).unlink(missing_ok=True)
    assert main(["best", str(run)]) == 0
    assert "/config.json" in capsys.readouterr().out.replace("\n", "")


def test_samples_are_those_of_the_last_judgement_and_missed_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = json.loads((RECORDED / "best.json").read_text())["judgement"]
    assert main(["samples", str(RECORDED), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["judgement"] == recorded
    assert main(["samples", str(RECORDED)]) == 0
    out = capsys.readouterr().out
    assert out.count("\nprompt  ") == len(recorded["samples"]) > 2
    for _, before, after in recorded["samples"]:
        assert f"before  {' '.join(before.split())}\nafter   {' '.join(after.split())}" in out
    run = tmp_path / "run"
    shutil.copytree(RECORDED, run)
    (run / "best.json").unlink()
    assert main(["samples", str(run)]) == 2
    assert "holds no last judgement of t0001" in capsys.readouterr().err


def test_train_refuses_to_save_into_a_folder_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").touch()
    assert main(["train", "tiny", "--save-model", str(tmp_path)]) == 2
    assert "--save-model" in capsys.readouterr().err


def test_prepare_explains_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["prepare", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    for text in ("the rated texts", "column of the texts", "column of the ratings", "seed of"):
        assert text in out


def test_schema_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert "search" in json.loads(capsys.readouterr().out)["properties"]


def test_train_refuses_a_folder_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").touch()
    assert main(["train", "tiny", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["train", "tiny", "--out", str(tmp_path / "new"), "--resume"]) == 2
    assert "holds no trial" in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        "run",
        "train",
        "status",
        "best",
        "prepare",
        "plan",
        "inspect",
        "replay",
        "doctor",
        "schema",
    ):
        with pytest.raises(SystemExit) as stop:
            build_parser().parse_args([command, "--help"])
        assert stop.value.code == 0
    assert "TrialConfig" in capsys.readouterr().out


def test_every_command_says_what_it_does_and_what_it_takes() -> None:
    (commands,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    silent = [name for name, parser in commands.choices.items() if not parser.description]
    silent += [
        f"{name} {action.metavar or action.dest}"
        for name, parser in commands.choices.items()
        for action in parser._actions
        if not action.help
    ]
    assert silent == []


def test_a_trial_is_only_resumed_as_what_it_was(
    tmp_path: Path, builtin_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "trial")
    quick = ["rollout.prompts_per_iteration=4", "rollout.max_new_tokens=4", "eval.prompts=2"]
    sets = [part for pair in (*quick, "budget.iterations=1") for part in ("--set", pair)]
    assert main(["train", "tiny", "--out", out, *sets]) == 0
    assert main(["train", "tiny", "--out", out, "--resume", *sets, "--set", "seed=5"]) == 2
    assert "a trial with another seed" in capsys.readouterr().err
    added = ["--set", "reward.extra.brevity.function=sweep_helpers:brevity"]
    assert main(["train", "tiny", "--out", out, "--resume", *sets, *added]) == 2
    assert "another reward.extra.brevity.function" in capsys.readouterr().err
    assert json.loads((tmp_path / "trial/config.json").read_text())["seed"] == 0
    # Its process ended between the checkpoint of iteration 1 and the line of it.
    file = tmp_path / "trial/metrics.jsonl"
    file.write_text(file.read_text().splitlines(keepends=True)[0] + '{"iteration": 1, "rew')
    longer = [*sets, "--set", "budget.iterations=2"]
    assert main(["train", "tiny", "--out", out, "--resume", *longer]) == 0
    lines = file.read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines if line[-1] == "}"] == [0, 1, 2]
    assert main(["train", "tiny", "--out", out, "--resume", *longer]) == 0
    assert file.read_text().splitlines() == lines
    # Lost before its first checkpoint: it starts from the beginning.
    shutil.rmtree(tmp_path / "trial/checkpoints")
    assert main(["train", "tiny", "--out", out, "--resume", *sets]) == 0


def test_a_failure_of_user_code_is_one_line(
    builtin_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "tiny", "--set", "reward.function=sweep_helpers:broken"]) == 1
    err = capsys.readouterr().err.strip().splitlines()
    assert len(err) == 1
    assert "no such rating" in err[0]
