"""docs/smollm.md says what the recorded sweep of the preset ``smollm`` holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import analysis
from rlhf_core.config.io import load_preset
from sweeps.cli import main
from sweeps.load import read_sweep

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "analysis/notebooks/data/smollm"
PAGE = (ROOT / "docs/smollm.md").read_text("utf-8")


def table(sweep: analysis.Sweep) -> list[str]:
    """The rows of the page's table: the policy at its start, then each trial at its end."""
    best, rows = analysis.best(sweep), []
    for trial, own in sweep.iterations.groupby("trial", observed=True):
        first, last = own.iloc[0], own.iloc[-1]
        params = sweep.trials.loc[trial]
        measured = [
            "{eval/heldout:.3f} ± {eval/heldout_stderr:.3f} | {eval/proxy:.3f} | {eval/kl_response:.1f} | "
            "{eval/distinct_1:.3f} | {eval/distinct_2:.3f} | {eval/length:.1f} |".format(**row)
            for row in (first, last)
        ]
        if not rows:
            rows.append(f"| at the start | - | - | {measured[0]}")
        assert rows[0].endswith(measured[0]), "all trials start from the same policy"
        name = f"**{trial}**" if trial == best else trial
        lr, kl = params["params.optim.policy.lr"], params["params.ppo.kl.coef"]
        rows.append(f"| {name} | {lr:.2e} | {kl:.3f} | {measured[1]}")
    return rows


def test_the_table_is_that_of_the_recorded_trials() -> None:
    rows = table(analysis.load(RECORDED))
    assert len(rows) == 1 + 4
    for row in rows:
        assert row in PAGE


def test_the_samples_are_those_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["samples", str(RECORDED)]) == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.strip().splitlines())
    assert f"```\n{printed}\n```" in PAGE


def test_the_winner_gained_without_repeating_itself() -> None:
    judgement = json.loads((RECORDED / "best.json").read_text())["judgement"]
    assert judgement["trained_on"] == 0
    assert judgement["standard_errors"] > 3
    assert judgement["kl_response"] < 15
    assert judgement["distinct_after"][1] > 0.8 * judgement["distinct_before"][1]
    assert judgement["length_after"] > 0.9 * judgement["length_before"]


def test_the_preset_is_still_what_was_recorded() -> None:
    info, now = analysis.load(RECORDED).info["config"], read_sweep("smollm")
    base = {**info["base"], "data": now["base"]["data"]}
    assert base == now["base"]
    assert {p["key"]: [p["low"], p["high"]] for p in info["space"]["parameters"]} == {
        key: value["float"] for key, value in now["space"].items()
    }
    for key in ("trials", "seed", "points", "constraints"):
        assert info["search"][key] == now["search"][key]
    rounds = load_preset("smollm")["budget"]["iterations"]
    assert set(analysis.load(RECORDED).trials["iteration"]) == {rounds}
