"""``rlhf-sweep export`` and ``rlhf-sweep import``, as they are typed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import optuna
import pandas as pd
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from run_directories import Builder

import analysis
from analysis.export import FRAMEWORKS, PLAIN, TRIALS, trial_config
from analysis.export.render import variable_name
from analysis.params import parameters_of
from rlhf_core.config import TrialConfig, flatten, load_trial, resolve_trial
from rlhf_core.errors import ConfigError
from sweeps.cli import main
from sweeps.commands.export import CONFIGS
from sweeps.commands.export import TRIALS as OFFERED

RECORDED = Path(__file__).resolve().parents[4] / "analysis/notebooks/data/quickstart"
EQUAL = ["--set", "ppo.clip_range_high=0.2", "--set", "ppo.clip_range_low=0.2"]


@pytest.mark.parametrize("target", ["yaml", "json"])
def test_our_own_formats_read_back_to_an_equal_configuration(target: str, tmp_path: Path) -> None:
    out = tmp_path / f"best.{target}"
    assert main(["export", str(RECORDED), "--to", target, "--out", str(out)]) == 0
    assert load_trial(out) == load_trial(RECORDED / "best.yaml")


def test_shell_variables_are_those_of_the_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["export", str(RECORDED), "--to", "env"]) == 0
    script = tmp_path / "best.env"
    script.write_text(capsys.readouterr().out)
    values = flatten(load_trial(RECORDED / "best.yaml"))
    for key in ("data.task", "ppo.kl.coef", "ppo.kl.measure", "rollout.stop", "model.policy"):
        said = subprocess.run(
            ["bash", "-c", f'. {script}; printf %s "${variable_name(key)}"'],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        value = values[key]
        assert said == (
            "" if value is None else value if isinstance(value, str) else json.dumps(value)
        )


def test_a_launch_script_states_what_became_of_every_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", str(RECORDED), "--to", "openrlhf", "--version", "0.11.1"]) == 0
    said = capsys.readouterr()
    values = flatten(load_trial(RECORDED / "best.yaml"))
    places = flatten(TrialConfig())
    plain = [k for k in values if k.startswith("resources.roles.") and values[k] == places[k]]
    assert [key for key in values if key not in said.out and key not in plain] == []
    assert "resources.roles.*, " in said.out
    for searched in ("ppo.clip_range_low", "ppo.kl.coef", "optim.policy.lr"):
        assert f" {values[searched]}" in said.out
    assert "OpenRLHF 0.11.1" in said.out
    assert "reward.missing_eos_penalty = 1: nothing is subtracted" in said.out
    assert said.err.startswith("Of ")


def test_another_trial_and_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(RECORDED), "--to", "json", "--trial", "t0003"]) == 0
    found = json.loads(capsys.readouterr().out)
    own = json.loads((RECORDED / "trials/t0003/config.json").read_text())
    assert resolve_trial(found, "x") == resolve_trial(own, "x")
    assert main(["export", str(RECORDED), "--to", "trl", *EQUAL]) == 0


def test_deepspeed_json_holds_the_lists(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["export", str(RECORDED), "--to", "deepspeed", "--role", "critic"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["optimizer"]["params"]["lr"] == 0.002
    assert any("--role policy" in line for line in found["_comment"])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_trials_as_a_table(kind: str, tmp_path: Path) -> None:
    out = tmp_path / f"trials.{kind}"
    assert main(["export", str(RECORDED), "--to", kind, "--out", str(out)]) == 0
    table = pd.read_csv(out) if kind == "csv" else pd.read_parquet(out)
    assert len(table) == 12
    assert table.loc[table["trial"] == "t0001", "params.ppo.kl.coef"].notna().all()


@pytest.mark.parametrize("url", ["sqlite:///{}/study.db", "{}/journal.log"])
def test_the_study_goes_to_another_storage(url: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(RECORDED / "sweep.json", run)
    storage = JournalStorage(JournalFileBackend(str(run / "study.log")))
    study = optuna.create_study(storage=storage, study_name="quick", direction="maximize")
    study.optimize(lambda trial: trial.suggest_float("ppo.kl.coef", 0.01, 0.2, log=True), 3)
    out = url.format(tmp_path)
    assert main(["export", str(run), "--to", "optuna", "--out", out]) == 0
    target = out if "://" in out else JournalStorage(JournalFileBackend(out))
    copied = optuna.load_study(study_name="quick", storage=target)
    assert [t.params for t in copied.trials] == [t.params for t in study.trials]
    assert copied.best_value == study.best_value
    assert main(["export", str(run), "--to", "optuna", "--out", out]) == 2


def test_import_writes_a_configuration_with_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = tmp_path / "train.sh", tmp_path / "trial.yaml"
    script.write_text(
        "python3 -m openrlhf.cli.train_ppo_ray --actor.adam.lr 2e-6 --ds.zpg 2 "
        "--data.max_samples 10240 --rollout.max_new_tokens 512 --vllm.num_engines 4"
    )
    assert main(["import", str(script), "--from", "openrlhf", "--out", str(out)]) == 0
    config = load_trial(out)
    assert config.optim.policy.lr == 2e-6
    assert config.budget.iterations == 10
    assert "# no counterpart, ds.zpg: 2" in out.read_text()
    assert "no counterpart, ds.zpg: 2" in capsys.readouterr().err


def test_import_says_each_thing_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.sh"
    script.write_text("python3 -m openrlhf.cli.train_ppo_ray --vllm.num_engines 4 --ds.zpg 2")
    note = "no counterpart, ds.zpg: 2"
    assert main(["import", str(script), "--from", "openrlhf"]) == 0
    said = capsys.readouterr()
    assert (said.out + said.err).count(note) == 1
    out = tmp_path / "trial.yaml"
    assert main(["import", str(script), "--from", "openrlhf", "--out", str(out)]) == 0
    assert capsys.readouterr().err.count(note) == 1
    assert out.read_text().count(note) == 1


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            ["export", "{run}", "--to", "verl", "--version", "0.9.2"],
            "there are 0.9.1; did you mean '0.9.1'?",
        ),
        (["export", "{run}", "--to", "openrlhf", "--version", "0.11.3"], "did you mean '0.11.2'"),
        (["export", "{run}", "--to", "verll"], "no target 'verll'; did you mean 'verl'?"),
        (["export", "{run}", "--to", "yaml", "--version", "1"], "--version: yaml has none"),
        (["export", "{run}", "--to", "trl", "--role", "critic"], "--role: belongs to deepspeed"),
        (["export", "{run}", "--to", "trl"], "must be equal for this target"),
        (["export", "{run}", "--to", "csv"], "--out: --to csv needs a file"),
        (["export", "{run}", "--to", "csv", "--out", "x", "--trial", "t0001"], "leave out --trial"),
        (
            ["export", "{run}", "--to", "trl", "--trial", "t0101"],
            "has no trial 't0101'; did you mean",
        ),
        (["export", "{empty}", "--to", "verl"], "has no best.yaml and no trials"),
        (["export", "{unfinished}", "--to", "verl"], "name a trial, such as --trial t0000"),
        (["export", "{empty}/none.yaml", "--to", "verl"], "cannot be read"),
        (
            ["export", "{run}", "--to", "yaml", "--out", "{empty}/no/x"],
            "x cannot be written: No such",
        ),
        (["export", "{run}", "--to", "csv", "--out", "{empty}/no/x"], "x cannot be written"),
        (["import", "{empty}/none.sh", "--from", "verl"], "cannot be read"),
        (["import", "{run}/sweep.json", "--from", "openrlhf"], "no command runs train_ppo_ray"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, unfinished = tmp_path / "empty", tmp_path / "unfinished"
    empty.mkdir()
    shutil.copytree(RECORDED, unfinished)
    (unfinished / "best.yaml").unlink()
    places = {"run": RECORDED, "empty": empty, "unfinished": unfinished}
    try:
        code = main([word.format(**places) for word in argv])
    except SystemExit as stop:
        code = int(str(stop.code))
    said = capsys.readouterr()
    assert code == 2
    assert line in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""


def test_the_command_offers_what_there_is() -> None:
    assert {*CONFIGS} == {*PLAIN, *FRAMEWORKS, "deepspeed"}
    assert TRIALS == OFFERED


def test_a_sweep_without_a_study_of_its_own_becomes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study.log"
    assert main(["export", str(RECORDED), "--to", "optuna", "--out", str(out)]) == 0
    assert "12 trials, made of what was recorded" in capsys.readouterr().err
    ours, back = analysis.load(RECORDED), analysis.load(str(out))
    done = ours.trials["outcome"] == "completed"
    assert back.trials["outcome"].tolist() == ours.trials["outcome"].tolist()
    assert back.trials.loc[done, "value"].tolist() == ours.trials.loc[done, "value"].tolist()
    assert analysis.best(back.ranked_by(back.metric)) == "t0001"
    for key in ours.axes:
        assert back.trials[f"params.{key}"].tolist() == ours.trials[f"params.{key}"].tolist()
    mine = ours.iterations.dropna(subset=[ours.metric])
    assert back.iterations[back.metric].tolist() == mine[ours.metric].tolist()


def test_what_a_packed_sweep_exports_is_what_its_directory_does(tmp_path: Path) -> None:
    analysis.load(RECORDED).to_parquet(tmp_path / "packed")
    for trial in (None, "t0003"):
        packed, source = trial_config(tmp_path / "packed", trial)
        assert packed == trial_config(RECORDED, trial)[0]
        assert (trial or "t0001, the best by eval/heldout") in source
    with pytest.raises(ConfigError, match="has no trial 't00003'; did you mean"):
        trial_config(tmp_path / "packed", "t00003")


def test_the_best_of_a_packed_sweep_has_its_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis.load(RECORDED).to_parquet(tmp_path / "packed")
    assert main(["best", str(tmp_path / "packed"), "--json"]) == 0
    packed = json.loads(capsys.readouterr().out)
    assert main(["best", str(RECORDED), "--json"]) == 0
    assert packed["params"] == json.loads(capsys.readouterr().out)["params"]
    assert main(["best", str(tmp_path / "packed")]) == 0
    assert "run it alone" not in capsys.readouterr().out, "it holds no configuration file"


def test_parameters_of_a_trial_are_as_they_were_set(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    values = [None, [1, 2], True, 2, "text"]
    entry = {"key": "any", "type": "choice", "values": values}
    builder.write("space.json", {"schema_version": 1, "parameters": [entry]})
    for number, value in enumerate(values):
        builder.completed(f"t{number:04d}", 1.0, params={"any": value})
    sweep = analysis.load(builder.path)
    assert [parameters_of(sweep, str(t))["any"] for t in sweep.trials.index] == values
    sweep.to_parquet(tmp_path / "packed")
    packed = analysis.load(tmp_path / "packed")
    assert [parameters_of(packed, str(t))["any"] for t in packed.trials.index] == values


@pytest.mark.parametrize("target", ["openrlhf", "verl", "env"])
def test_what_a_file_came_from_never_becomes_a_command(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(RECORDED / "best.yaml", tmp_path)
    chosen = {"trial": "t0001", "objective": "x\necho taken over\r\n: y"}
    (tmp_path / "best.json").write_text(json.dumps(chosen))
    assert main(["export", str(tmp_path), "--to", target]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "taken over" in line]
    assert [line[:1] for line in told] == ["#"]
