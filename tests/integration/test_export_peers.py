"""Exports are accepted by the released peers: their parsers, checks and configuration classes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from peers import peer_python
from random_configs import configs
from real_parsers import OpenRLHF, script_words, verl_parse, verl_reference

from analysis.export import FRAMEWORKS, export_config
from analysis.export.rules import Var, defaults
from rlhf_core.config import TrialConfig, apply, resolve_trial

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
VARIABLES = {
    name: f"given/{name.lower()}"
    for name in ("POLICY", "REWARD_MODEL", "PROMPTS", "REWARD_FUNCTION", "TRAIN_FILES", "VAL_FILES")
}
OPENRLHF = FRAMEWORKS["openrlhf"].versions
RANDOM = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)
SPLIT = {
    "resources.layout": "split",
    "resources.roles.rollout.workers": 4,
    "resources.roles.rollout.gpus": 2.0,
    "resources.roles.learner.gpus": 8.0,
    "ppo.correction.kind": "sequence_mask",
    "ppo.kl.mode": "loss",
    "ppo.kl.estimator": "k3",
    "optim.policy.schedule": "cosine",
    "optim.policy.horizon_iterations": 20,
}
ROLES = ["learner", "critic", "reference", "reward"]
AHEAD = {
    "sync.mode": "async",
    "sync.max_staleness": 2,
    "resources.layout": "colocated",
    "resources.colocate": [{"roles": ROLES, "gpus": 4}],
    **{f"resources.roles.{role}.workers": 4 for role in ROLES},
    "resources.roles.rollout.gpus": 2.0,
}
SHARED = {
    **AHEAD,
    "sync.mode": "sync",
    "sync.max_staleness": None,
    "resources.colocate": [{"roles": [*ROLES, "rollout"], "gpus": 4}],
    "reward.extra.style.model": "org/style",
}


def given_value(value: Any) -> Any:
    return VARIABLES[value.name] if isinstance(value, Var) else value


@pytest.fixture(scope="module", params=OPENRLHF)
def parser(request: pytest.FixtureRequest) -> tuple[str, OpenRLHF]:
    return request.param, OpenRLHF(request.param)


def assert_parsed(version: str, parser: OpenRLHF, config: TrialConfig) -> None:
    made = export_config(config, "openrlhf", version=version)
    assert made.applied is not None
    module, *words = script_words(made.text, VARIABLES)[1:]
    assert module == "openrlhf.cli.train_ppo_ray"
    parsed = parser.parse(words)
    wanted = {name: given_value(value) for name, value in made.applied.theirs.items()}
    # Their checks fill in and correct values in place; the parsed ones are what counts.
    again = vars(parser.parser.parse_args(words))
    assert {name: again[name] for name in wanted} == wanted
    assert parsed.keys() == again.keys()


@pytest.mark.parametrize(
    "values", [{}, SPLIT, SHARED, AHEAD], ids=["default", "split", "shared", "ahead"]
)
def test_openrlhf_takes_the_command(parser: tuple[str, OpenRLHF], values: dict[str, Any]) -> None:
    assert_parsed(*parser, apply(TrialConfig(), values))


def test_openrlhf_has_the_defaults_that_an_import_assumes(parser: tuple[str, OpenRLHF]) -> None:
    version, real = parser
    for name, value in defaults(FRAMEWORKS["openrlhf"].table(version)).items():
        there = real.default(name)
        assert name in {a.dest for a in real.parser._actions}
        if value is not None or there is not None:
            assert (list(there) if isinstance(there, tuple) else there) == value, name


@RANDOM
@given(data=st.data())
def test_openrlhf_takes_any_command(parser: tuple[str, OpenRLHF], data: st.DataObject) -> None:
    version, real = parser
    target = FRAMEWORKS["openrlhf"]
    assert_parsed(version, real, data.draw(configs(lambda c: target.apply(c, version))))


@settings(parent=RANDOM, max_examples=40)
@given(config=configs(lambda c: FRAMEWORKS["verl"].apply(c, "0.9.1")))
def test_verl_takes_any_command(config: TrialConfig) -> None:
    made = export_config(config, "verl")
    assert made.applied is not None
    module, *words = script_words(made.text, VARIABLES)[1:]
    assert module == "verl.trainer.main_ppo"
    wanted = {name: given_value(value) for name, value in made.applied.theirs.items()}
    assert verl_parse(words) == wanted


def test_verl_has_the_defaults_that_an_import_assumes() -> None:
    reference = verl_reference()
    for name, value in defaults(FRAMEWORKS["verl"].table("0.9.1")).items():
        there: Any = reference
        for part in name.split("."):
            there = there[part]
        # Where we assume nothing theirs is a path, or mandatory, or made from another setting.
        if value is not None and not str(there).startswith("${"):
            assert there == value, name


BENCHMARKS = str(Path(__file__).resolve().parents[1] / "benchmarks")
TRL_VALUES = {
    "optim.policy.schedule": "cosine",
    "optim.policy.min_lr_ratio": 0.1,
    "optim.policy.warmup_iterations": 2,
    "model.device": "cpu",
    "ppo.minibatches": 4,
    "checkpoint.every_iterations": 5,
    "reward.missing_eos_penalty": 1.0,
}
READ_ARGS = """
import json, runpy, sys
args = runpy.run_path(sys.argv[1], run_name="exported")["ARGS"]
plain = (int, float, str, dict, list, type(None))
print(json.dumps({name: value for name, value in vars(args).items() if isinstance(value, plain)}))
"""


def trl(*words: str, **variables: str) -> str:
    done = subprocess.run(
        [peer_python("trl"), *words],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **VARIABLES,
            "TRL_EXPERIMENTAL_SILENCE": "1",
            "PYTHONPATH": "",
            **variables,
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("values", [{"model.device": "cpu"}, TRL_VALUES], ids=["plain", "more"])
def test_trl_builds_its_configuration(values: dict[str, Any], tmp_path: Path) -> None:
    made = export_config(apply(TrialConfig(), values), "trl")
    assert made.applied is not None
    file = tmp_path / "train.py"
    file.write_text(made.text)
    found = json.loads(trl("-c", READ_ARGS, str(file)).splitlines()[-1])
    wanted = {
        name: given_value(value)
        for name, value in made.applied.theirs.items()
        if not name.isupper()
    }
    assert wanted.pop("report_to") == "none"
    assert found["report_to"] == []
    assert {name: found[name] for name in wanted} == wanted


def test_trl_trains_by_the_exported_program(tmp_path: Path) -> None:
    """One policy step on random models: the program runs to its end and saves the policy."""
    # Made by their Transformers, which cannot read a tokenizer that a newer one saved.
    make = "import json, sys; from pathlib import Path; from common import save_models; "
    make += "print(json.dumps(save_models(Path(sys.argv[1]), 'small')))"
    models = json.loads(trl("-c", make, str(tmp_path), PYTHONPATH=BENCHMARKS).splitlines()[-1])
    config = resolve_trial(
        {
            "model": {"policy": models["policy"], "device": "cpu"},
            "reward": {"model": models["reward"]},
            "data": {"prompts": str(tmp_path / "prompts.jsonl")},
            "rollout": {"prompts_per_iteration": 8, "max_new_tokens": 4},
            "ppo": {"minibatches": 2},
            "budget": {"iterations": 1},
        },
        "test",
    )
    words = Path(models["prompts.txt"]).read_text().splitlines()
    lines = [json.dumps({"prompt": text}) for text in words]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    file = tmp_path / "train.py"
    file.write_text(export_config(config, "trl").text.replace("'ppo'", repr(str(tmp_path / "ppo"))))
    said = trl(str(file), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    assert "objective/kl" in said
    assert list((tmp_path / "ppo").glob("*.safetensors"))


INITIALISE = """
import json, sys
import torch, deepspeed
model = torch.nn.Linear(4, 1)
deepspeed.init_distributed("gloo")
engine, _, _, schedule = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=sys.argv[1])
group = engine.optimizer.param_groups[0]
print(json.dumps({"batch": engine.train_batch_size(), "micro": engine.train_micro_batch_size_per_gpu(),
                  "steps": engine.gradient_accumulation_steps(), "clip": engine.gradient_clipping(),
                  "betas": list(group["betas"]), "eps": group["eps"], "decay": group["weight_decay"],
                  "schedule": type(schedule).__name__, "stage": engine.zero_optimization_stage()}))
"""


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_deepspeed_initialises_with_the_file(kind: str, tmp_path: Path) -> None:
    config = apply(
        TrialConfig(),
        {
            "model.dtype": "bfloat16",
            "ppo.minibatches": 2,
            "optim.micro_batch_size": 8,
            "optim.policy.schedule": kind,
            "optim.policy.warmup_iterations": 3,
            "optim.policy.weight_decay": 0.1,
        },
    )
    file = tmp_path / "ds.json"
    file.write_text(export_config(config, "deepspeed").text)
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [peer_python("deepspeed"), "-c", INITIALISE, str(file)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **alone,
            "MASTER_PORT": "29581",
            "DS_ACCELERATOR": "cpu",
            "PYTHONPATH": "",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "batch": 32,
        "micro": 8,
        "steps": 4,
        "clip": 1.0,
        "betas": [0.9, 0.95],
        "eps": 1e-5,
        "decay": 0.1,
        "schedule": {"constant": "WarmupLR", "linear": "WarmupDecayLR", "cosine": "WarmupCosineLR"}[
            kind
        ],
        "stage": 2,
    }
