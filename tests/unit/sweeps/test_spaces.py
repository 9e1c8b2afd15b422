"""The space of a sweep: read in all its forms, its corners, its rules, and what is refused at once."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from ray.tune.search.variant_generator import generate_variants
from sweep_helpers import SPACE

from rlhf_core.config.io import parse_yaml
from rlhf_core.errors import ConfigError
from rlhf_core.metrics import CATALOGUE
from rlhf_core.runtime.placement import Node
from search_spaces import Choice, Constant, Float, Pow2, Space, presets
from sweeps.commands.overrides import parse_overrides
from sweeps.driver import SweepDriver
from sweeps.load import Loaded, load_sweep
from sweeps.outcomes import Outcome
from sweeps.plan import fit_note, plan_sweep, unfit
from sweeps.programs.ppo import PPOProgram
from sweeps.record import RunDirectory
from sweeps.schema import sweep_schema
from sweeps.spaces import (
    corner_points,
    draw,
    kept_share,
    read_space,
    rejection_note,
    share_note,
)
from sweeps.sweep import Sweep
from sweeps.tuning.cluster import expected_nodes
from sweeps.tuning.study import Study
from sweeps.tuning.trainable import PPOTrainable, params_of

SCRIPT = {
    "program": "sweep_helpers:ScriptProgram",
    "search": {"objective": "script/loss", "direction": "minimize"},
}
SHORT = {"ppo.lam": {"choice": [0.9, 1.0]}}


def load(space: Any, **values: Any) -> Loaded:
    return load_sweep({"base": "tiny", "space": space, **values})


def refusal(space: Any, **values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(space, **values)
    return str(caught.value)


@pytest.mark.parametrize("name", presets.names())
@pytest.mark.long
def test_whatever_a_preset_draws_passes_or_breaks_a_rule_of_its_own(name: str) -> None:
    loaded = load(name)
    source = random.Random(1)
    points = [draw(loaded.space, source) for _ in range(25)]
    kept = [point for point in points if not loaded.space.broken(point, loaded.values)]
    assert len(kept) >= 5
    for point in [*kept, *loaded.corners]:
        assert loaded.space.check(point) == []
        assert loaded.program.check(loaded.base, point) == []


@pytest.mark.parametrize("name", ["ppo_core", "sampling", "joint"])
def test_the_size_of_the_model_moves_the_bounds_of_a_preset(name: str) -> None:
    key = "rollout.prompts_per_iteration" if name == "sampling" else "optim.policy.lr"
    # The policy of the built-in task is known before it is built.
    assert load(name).space[key] == presets.load(name, 3e5)[key]
    large = load({"extends": name, "model_size": "8B"}).space
    assert large[key] == presets.load(name, 8e9)[key]
    assert load({"extends": name, "model_size": 8_000_000_000}).space == large


def test_a_size_that_is_not_known_is_told(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("the plot is\n")
    base = {
        "data": {"prompts": str(tmp_path / "prompts.txt")},
        "model": {"policy": "nobody/has-such-a-model"},
        "reward": {"function": "sweep_helpers:brevity"},
    }
    search = {"objective": "eval/weighted"}
    sweep = {"base": base, "search": search, "space": "ppo_core"}
    (note,) = Sweep.from_dict(sweep).loaded.notes
    assert "bounds suit 7 to 8 B parameters; name space.model_size, such as 135M" in note
    assert note in Sweep.from_dict(sweep).notes()
    named = {"extends": "ppo_core", "model_size": "135M"}
    assert load_sweep({**sweep, "space": named}).notes == ()


def test_presets_are_extended_dropped_narrowed_and_frozen() -> None:
    written = {
        "extends": ["ppo_core", "sync"],
        "model_size": "1B",
        "ppo.kl.controller": {"choice": ["fixed", "adaptive"]},
        # The parent stands in a preset.
        "ppo.entropy_coef": {"float": [0.0, 0.1], "when": {"sync.mode": "async"}},
        "ppo.lam": {"choice": [0.9, 1.0]},
        "drop": ["ppo.epochs"],
        "narrow": {"optim.policy.lr": [1e-6, 1e-5], "ppo.minibatches": [2, 4]},
        "freeze": {"sync.interval": 1},
        "rules": [{"at_most": ["ppo.entropy_coef", "ppo.kl.coef"]}],
    }
    jsonschema.Draft202012Validator(sweep_schema()).validate({"space": written})
    space = load(written).space
    assert "ppo.epochs" not in space
    assert space["optim.policy.lr"].domain == Float(1e-6, 1e-5, log=True)
    assert space["ppo.minibatches"].domain == Pow2(2, 4)
    assert space["ppo.lam"].domain == Choice((0.9, 1.0))
    assert space["sync.interval"].domain == Constant(1)
    assert {str(rule) for rule in space.rules} >= {
        "ppo.entropy_coef <= ppo.kl.coef",
        "ppo.clip_range_low <= ppo.clip_range_high",
        "sync.interval <= sync.max_staleness",
    }


def test_a_preset_is_changed_on_the_command_line() -> None:
    overrides = parse_overrides(
        [
            "space.model_size=1B",
            "space.freeze.ppo.epochs=1",
            "space.narrow.optim.policy.lr=[1e-6, 1e-5]",
            "space.drop=[ppo.lam]",
        ]
    )
    space = load_sweep({"base": "tiny", "space": "ppo_core"}, overrides).space
    assert space["ppo.epochs"].domain == Constant(1)
    assert space["optim.policy.lr"].domain == Float(1e-6, 1e-5, log=True)
    assert "ppo.lam" not in space


def test_a_space_comes_from_a_module_or_a_file(tmp_path: Path) -> None:
    assert load("sweep_helpers:SPACE").space == SPACE
    file = tmp_path / "mine.py"
    file.write_text(
        "from search_spaces import Float, Parameter, Space, presets\n"
        "SPACE = presets.load('sync').merge(Space({'ppo.lam': Parameter(Float(0.9, 1.0))}))\n"
        "SHORT = {'extends': 'ppo_core', 'freeze': {'ppo.epochs': 1}}\n"
        "NO_SPACE = [1]\n"
        f"CIRCLE = {{'extends': ['sync', {str(file)!r} + ':CIRCLE']}}\n"
    )
    space = load(f"{file}:SPACE").space
    assert set(space) == {*presets.load("sync"), "ppo.lam"}
    assert load(f"{file}:SHORT").space["ppo.epochs"].domain == Constant(1)
    both = load({"extends": ["reward", f"{file}:SPACE"]}).space
    assert set(both) == {*presets.load("reward"), *space}
    assert "must be a Space or a mapping of keys to domains, but is a list" in refusal(
        f"{file}:NO_SPACE"
    )
    assert "has no 'SPAC'; did you mean 'SPACE'" in refusal(f"{file}:SPAC")
    assert ":CIRCLE extends itself" in refusal(f"{file}:CIRCLE")
    assert "no file" in refusal(f"{tmp_path}/none.py:SPACE")
    file.write_text("1 / 0")
    (line,) = refusal(f"{file}:SPACE").splitlines()
    assert "cannot be imported: ZeroDivisionError" in line
    assert "cannot be imported" in refusal("no.such.module:SPACE")


@pytest.mark.parametrize(
    ("space", "rule"),
    [
        ({"ppo.kl.coeff": {"float": [0, 1]}}, "unknown key 'ppo.kl.coeff'; did you mean 'ppo.kl.coef'"),
        ({"ppo.kl.coef": {"float": [0.2, 0.1]}}, "ppo.kl.coef: low < high must hold"),
        ({"ppo.kl.coef": {"float": [0, 0.1], "log": True}}, "a log domain needs low > 0"),
        ({"ppo.lam": {"float": [0.9, 1.0], "logit": True}}, "a logit domain lies within (0, 1)"),
        ({"ppo.minibatches": {"int": [1, 6], "pow2": True}}, "needs powers of two, got high=6"),
        ({"rules": [{"at_most": ["ppo.epochs", "ppo.minibatchs"]}]},
         "rule ppo.epochs <= ppo.minibatchs: unknown key 'ppo.minibatchs'; did you mean 'ppo.minibatches'"),
        ({**SHORT, "rules": [{"at_most": ["ppo.lam", 0.5]}]},
         "none of 2,000 points keeps the rule ppo.lam <= 0.5; widen the domains or drop a rule"),
        ({"ppo.lam": {"float": [0, 1]},
          "rules": [{"at_most": ["ppo.lam", 0.4]}, {"at_most": [0.6, "ppo.lam"]}]},
         "keeps the rules ppo.lam <= 0.4; 0.6 <= ppo.lam"),
        ({**SHORT, "rules": [{"at_most": ["ppo.lam", "ppo.advantage"]}]},
         "keeps the rule ppo.lam <= ppo.advantage"),
        ({"rules": ["fits_the_cluster"]}, "rules[0]: a rule is one of"),
        ({"extends": "ppo_cor"}, "no preset 'ppo_cor'; did you mean 'ppo_core'"),
        ({"extends": 3}, "extends is a name or a list of names, but is 3"),
        ({"extends": "ppo_core", "narow": {}}, "no word 'narow'; did you mean 'narrow'"),
        ({"extends": "ppo_core", "narrow": {"ppo.lam": [0.9, 1.0]}}, "only float and int domains can be"),
        ({"extends": "ppo_core", "narrow": {"ppo.kl.coef": 0.1}}, "narrow: ppo.kl.coef needs [low, high]"),
        ({"extends": "ppo_core", "narrow": [1]}, "narrow maps keys of the space, but is [1]"),
        ({"extends": "ppo_core", "freeze": {"ppo.epochs": 3}}, "ppo.epochs: cannot freeze at 3"),
        ({"extends": "ppo_core", "drop": "ppo.epoch"}, "did you mean 'ppo.epochs'"),
        ({"extends": "ppo_core", "model_size": "big"}, "model_size is a number of parameters above 0, got 'big'"),
        (["ppo_core"], "space is a preset's name, 'module:NAME' or a mapping of keys"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_bad_space_is_refused_in_a_line(space: Any, rule: str) -> None:
    (line,) = refusal(space).splitlines()
    assert line.startswith("sweep: space")
    assert rule in line


def test_a_rule_may_look_at_what_is_not_searched() -> None:
    space = {
        "ppo.minibatches": {"choice": [2, 4, 5]},
        "rules": [{"divides": ["ppo.minibatches", "rollout.prompts_per_iteration"]}],
    }
    loaded = load(space)
    assert [
        point["ppo.minibatches"] for point in loaded.corners if point["ppo.minibatches"] == 5
    ] == []
    # Without the rule the same space is refused: 64 prompts do not make 5 equal minibatches.
    assert "must divide" in refusal({"ppo.minibatches": {"choice": [2, 4, 5]}})
    ((line,), kept) = (
        loaded.checker(lambda params: None)({"ppo.minibatches": 5}),
        loaded.checker(lambda params: None)({"ppo.minibatches": 4}),
    )
    assert line.startswith(
        "rule ppo.minibatches divides rollout.prompts_per_iteration is broken by"
    )
    assert kept == []


def test_points_that_the_user_names_keep_the_rules() -> None:
    space = {"extends": "ppo_core"}
    good = {"ppo.clip_range_low": 0.2, "ppo.clip_range_high": 0.3}
    load(space, search={"points": [good, {"ppo.clip_range_low": 0.3}]})
    line = refusal(
        space,
        search={
            "points": [{**good, "ppo.clip_range_low": 0.31 - 0.01, "ppo.clip_range_high": 0.2}]
        },
    )
    assert "search.points[0]: rule ppo.clip_range_low <= ppo.clip_range_high is broken" in line


def test_corners_reach_every_end_that_the_rules_allow() -> None:
    loaded = load("joint")
    reached = {(key, value) for point in loaded.corners for key, value in point.items()}
    for key, parameter in loaded.space.items():
        domain = parameter.domain
        for value in (domain.low, domain.high) if hasattr(domain, "low") else domain.values:
            assert (key, value) in reached, (key, value)
    assert all(not loaded.space.broken(point, loaded.values) for point in loaded.corners)


def test_corners_of_a_child_are_tried_while_its_parents_allow_it() -> None:
    space = presets.load("sync")
    found = [point for point in corner_points(space) if "ppo.correction.high" in point]
    assert {point["ppo.correction.high"] for point in found} == {1.5, 5.0}
    assert {p["sync.max_staleness"] for p in corner_points(space) if "sync.max_staleness" in p} == {
        1,
        2,
        4,
    }


CLUSTER = {"rehearse": {"nodes": 1, "cpus": 16, "gpus": 4, "memory_gb": 256}}


def test_what_the_cluster_cannot_hold_is_drawn_again_where_a_rule_says_so() -> None:
    ruled = Sweep.from_dict({"base": "tiny", "space": "resources", "cluster": CLUSTER})
    plan = ruled.plan()
    assert any(shape.shortfall for shape in plan.shapes)
    assert plan.problems == []
    lacking = sum(shape.shortfall is not None for shape in plan.shapes)
    note = fit_note(plan)
    assert note is not None
    assert note.startswith(f"placement: {lacking} of the {len(plan.shapes)} placements found fit")
    check = ruled.loaded.checker(lambda params: unfit(ruled.loaded, plan, params))
    fused = {"resources.layout": "fused", "resources.cpus_per_gpu": 4}
    assert check(fused) == []
    (line,) = check({**fused, "resources.cpus_per_gpu": 12, "resources.layout": "colocated"})
    assert "CPUs" in line
    free = {
        key: {"choice": list(p.domain.values)}
        for key, p in ruled.loaded.space.items()
        if p.when is None
    }  # type: ignore[union-attr]
    assert Sweep.from_dict({"base": "tiny", "space": free, "cluster": CLUSTER}).plan().problems


def test_a_space_of_which_nothing_fits_is_refused_all_the_same() -> None:
    small = {"rehearse": {"nodes": 1, "cpus": 1, "gpus": 0, "memory_gb": 256}}
    loaded = load("resources", cluster=small)
    nodes = expected_nodes(loaded.config.cluster)
    assert nodes is not None
    assert plan_sweep(loaded, nodes).problems


def test_what_is_asked_for_keeps_the_rules_and_the_rest_is_counted(tmp_path: Path) -> None:
    space = {
        "x": {"float": [0.0, 6.0]},
        "steps": {"int": [1, 6]},
        "rules": [{"at_most": ["x", "steps"]}],
    }
    loaded = load_sweep({**SCRIPT, "space": space})
    study = Study(
        tmp_path, "s", loaded.config.search, loaded.space, loaded.checker(lambda params: None)
    )
    asked = [study.ask()[1] for _ in range(12)]
    assert all(point["x"] <= point["steps"] for point in asked)
    share = kept_share(loaded.space, loaded.values)
    assert 0.4 < share < 0.7
    assert study.rejected > 0
    (note,) = rejection_note(study.rejected, len(asked))
    assert note.startswith(f"{study.rejected} of {study.rejected + 12} proposed configurations (")
    assert rejection_note(0, 12) == []


def test_a_configuration_that_breaks_a_rule_never_runs(tmp_path: Path) -> None:
    space = {"x": {"float": [0.0, 9.0]}, "rules": [{"at_most": ["x", "steps"]}]}
    loaded = load_sweep({**SCRIPT, "space": space})
    # A hundred refusals in a row, and the study hands out the last one.
    search = loaded.config.search.model_copy(update={"trials": 1, "points": ({"x": 8.0},)})
    loaded = replace(loaded, config=loaded.config.model_copy(update={"search": search}))
    study = Study(tmp_path, "s", search, loaded.space, lambda params: [])
    driver = SweepDriver(loaded, RunDirectory(tmp_path), study, [Node("a", 8.0, 0.0, 8.0)], 1)
    assert driver.next_trial() is None
    (record,) = driver.records.values()
    assert (record.outcome, record.params) == (Outcome.INFEASIBLE, {"x": 8.0})
    assert record.reason.startswith("rule x <= steps is broken by x = 8, steps = 3")


def test_rules_that_refuse_most_of_a_space_are_told() -> None:
    space = {
        "x": {"float": [0.0, 60.0]},
        "steps": {"int": [1, 6]},
        "rules": [{"at_most": ["x", "steps"]}],
    }
    loaded = load_sweep({**SCRIPT, "space": space})
    (note,) = share_note(loaded.space, loaded.values)
    assert note.startswith("space: 6% of its points keep its rules")
    assert share_note(Space(dict(loaded.space)), loaded.values) == []


def test_points_of_logits_and_powers_reach_a_trial_as_they_are_written(tmp_path: Path) -> None:
    space = {
        "ppo.gamma": {"float": [0.9, 0.999], "logit": True},
        "ppo.epochs": {"int": [1, 4], "pow2": True},
    }
    point = {"ppo.gamma": 0.99, "ppo.epochs": 4}
    loaded = load(space, search={"points": [point]})
    study = Study(tmp_path, "s", loaded.config.search, loaded.space, lambda params: [])
    first = study.ask()[1]
    assert first == {"ppo.gamma": pytest.approx(0.99), "ppo.epochs": 4}


GUIDE = (Path(__file__).resolve().parents[3] / "docs/tuning.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


def test_the_spaces_of_the_guide_load() -> None:
    first, second = (parse_yaml(text, "guide") for text in blocks("yaml"))
    assert load(**first).config.search.trials == 64
    second["space"]["extends"] = ["ppo_core", "sync"]
    space = load(second["space"]).space
    assert space["ppo.kl.coef"].domain == Float(0.01, 0.1, log=True)
    written, _ = blocks("python")
    known: dict[str, Any] = {}
    exec(written, known)
    assert set(load(known["SPACE"]).space) == {
        *presets.load("ppo_core"),
        "ppo.kl.controller",
        "ppo.kl.horizon",
    }


def test_the_guide_names_every_preset_and_metrics_that_exist() -> None:
    assert all(f"| `{name}` |" in GUIDE for name in presets.names())
    table = GUIDE.split("## What to watch")[1].split("## A space")[0]
    watched = re.findall(r"`([a-z]+/[a-z_]+)`", table)
    assert len(watched) > 12
    assert set(watched) <= set(CATALOGUE)


@pytest.mark.parametrize("name", ["ppo_core", "sync"])
def test_a_tuner_of_ones_own_gets_trials_that_can_run(name: str) -> None:
    example: dict[str, Any] = {}
    text = blocks("python")[1].split("tuner = ")[0].replace('"ppo_core"', f'"{name}"')
    exec(text, example)
    source, program = np.random.default_rng(3), PPOProgram()
    for _ in range(12):
        _, config = next(generate_variants(dict(example["space"]), random_state=source))
        params = params_of(config)
        assert params.keys() == example["loaded"].space.keys()
        request = PPOTrainable.default_resource_request(config)
        assert request.bundles == [{"CPU": 4.0, "GPU": 1.0, "memory": 32e9}]
        assert program.check(example["loaded"].base, params) == []


def test_a_parameter_may_be_called_almost_like_a_word() -> None:
    space = read_space(
        {"rule": {"int": [1, 2]}, "extend": {"choice": [1, 2]}}, "sweep", lambda: None
    )
    assert set(space) == {"rule", "extend"}


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_no_preset_hands_out_what_breaks_a_rule(sampler: str) -> None:
    root = Path(__file__).resolve().parents[3]
    script = [sys.executable, "tests/benchmarks/rejections.py", "--quick", "--sampler", sampler]
    done = subprocess.run(script, cwd=root, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])["presets"]
    assert found.keys() == set(presets.names())
    assert {(one["handed_out"], one["broken"]) for one in found.values()} == {(20, 0)}
    assert found["joint"]["passed_over"] > 0
