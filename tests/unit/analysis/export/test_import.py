"""Scripts, programs and files as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.export import import_text
from analysis.export.read_shell import command_words
from analysis.export.rules import Var
from rlhf_core.config import flatten
from rlhf_core.errors import ConfigError

OPENRLHF = r"""
# PPO on eight GPUs
set -x
LR=5e-7
export MODELS=OpenRLHF
read -r -d '' unused <<EOF
EOF
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": "/openrlhf"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --ref_num_nodes 1 \
   --ref_num_gpus_per_node 2 \
   --actor_num_nodes 1 --actor_num_gpus_per_node 2 \
   --critic_num_nodes 1 --critic_num_gpus_per_node 2 \
   --reward_num_nodes 1 --reward_num_gpus_per_node 2 \
   --vllm_num_engines 2 \
   --vllm_tensor_parallel_size 2 \
   --pretrain $MODELS/Llama-3-8b-sft-mixture \
   --reward_pretrain "${MODELS}/Llama-3-8b-rm-mixture" \
   --micro_train_batch_size 8 --train_batch_size 128 \
   --rollout_batch_size 1024 --max_samples 100000 --max_epochs 1 \
   --max_len 2048 --max_new_tokens 1024 \
   --zero_stage 3 --param_dtype bf16 \
   --actor_learning_rate $LR --critic_learning_rate 9e-6 \
   --init_kl_coef 0.01 \
   --prompt_data OpenRLHF/prompt-collection-v0.1 --input_key context_messages \
   --apply_chat_template --normalize_reward --packing_samples \
   --gradient_checkpointing --use_wandb $TOKEN 2>&1 | tee log
"""
VERL = """
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=256 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.rollout.n=5 \\
    +actor_rollout_ref.model.override_config.attn="x" \\
    trainer.logger='["console","wandb"]' trainer.total_training_steps=100 trainer.n_gpus_per_node=1 $@
"""
TRL = """
from trl.experimental.ppo import PPOConfig, PPOTrainer
BATCH = 16
config = PPOConfig(
    output_dir="out", learning_rate=3e-6, per_device_train_batch_size=BATCH, gradient_accumulation_steps=4,
    total_episodes=6400, sft_model_path="EleutherAI/pythia-1b-deduped", missing_eos_penalty=1.0,
    num_mini_batches=1, warmup_ratio=compute(), max_grad_norm=1.0,
)
"""


def subset(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in wanted}


def test_an_openrlhf_script_of_the_flat_dialect() -> None:
    made = import_text("openrlhf", OPENRLHF, "train.sh")
    wanted = {
        "model.policy": "OpenRLHF/Llama-3-8b-sft-mixture",
        "reward.model": "OpenRLHF/Llama-3-8b-rm-mixture",
        "optim.policy.lr": 5e-7,
        "optim.critic.lr": 9e-6,
        "ppo.minibatches": 8,
        "ppo.lam": 1.0,  # theirs where the script is silent
        "ppo.value_clip_range": 0.5,
        "reward.clip": 10.0,
        "budget.iterations": 97,
        "rollout.prompts_per_iteration": 1024,
        "data.max_prompt_tokens": 1024,
        "optim.policy.schedule": "cosine",
        "optim.policy.warmup_iterations": 3,
        "resources.layout": "split",
        "resources.roles.rollout.gpus": 2.0,
        "resources.roles.learner.workers": 2,
        "resources.roles.learner.gpus": 1.0,
    }
    assert subset(flatten(made.config), wanted) == wanted
    assert made.version == "0.10.1.post2"
    assert made.unknown == {"use_wandb": Var("TOKEN", "")}
    optim = made.config.optim
    assert (optim.engine, optim.zero_stage, optim.offload) == ("deepspeed", 3, "none")
    assert optim.gradient_checkpointing
    assert made.unread.keys() == {"data.prompts"}


def test_a_verl_script() -> None:
    made = import_text("verl", VERL, "train.sh")
    wanted = {
        "ppo.advantage": "group_norm",
        "rollout.samples_per_prompt": 5,
        "ppo.kl.mode": "loss",
        "ppo.kl.estimator": "k3",
        "ppo.kl.coef": 0.001,
        "ppo.minibatches": 4,
        "ppo.dual_clip": 3.0,
        "budget.iterations": 100,
        "model.policy": "Qwen/Qwen2.5-0.5B-Instruct",
    }
    assert subset(flatten(made.config), wanted) == wanted
    assert "actor_rollout_ref.model.override_config.attn" in made.unknown


def test_a_trl_program() -> None:
    made = import_text("trl", TRL, "ppo.py")
    wanted = {
        "rollout.prompts_per_iteration": 64,
        "optim.policy.lr": 3e-6,
        "optim.critic.lr": 3e-6,
        "budget.iterations": 100,
        "reward.missing_eos_penalty": 1.0,
        "optim.policy.schedule": "linear",
        "optim.policy.horizon_iterations": 100,
    }
    assert subset(flatten(made.config), wanted) == wanted
    assert made.unknown["warmup_ratio"] == Var("compute()", "")
    assert made.unknown["max_grad_norm"] == 1.0
    assert not any("max_grad_norm" in line and "not taken" in line for line in made.report())


@pytest.mark.parametrize(
    ("target", "name", "text"),
    [
        ("trl", "ppo.yaml", "learning_rate: 3e-6\ntotal_episodes: 640\n"),
        (
            "trl",
            "ppo.sh",
            "accelerate launch examples/scripts/ppo/ppo.py --learning_rate 3e-6 --total_episodes 640",
        ),
        ("verl", "verl.yaml", "actor_rollout_ref: {actor: {optim: {lr: 3e-6}}}\n"),
        ("openrlhf", "flags.txt", "--actor.adam.lr=3e-6"),
    ],
)
def test_other_forms_are_read(target: str, name: str, text: str) -> None:
    assert import_text(target, text, name).config.optim.policy.lr == 3e-6


def test_words_of_arrays_and_variables_of_variables() -> None:
    text = """
    A=1; B=$A
    args=(
      --one "$B"   # said
      --two 'a b'
    )
    args2=(--three ${MISSING:-3} --four "$OPEN")
    python -m tool.run "${args[@]}" "${args2[@]}" > log 2>&1
    """
    words = command_words(text, "run", "x.sh")
    assert words == ["--one", "1", "--two", "a b", "--three", "3", "--four", Var("OPEN", "")]


@pytest.mark.parametrize(
    ("target", "name", "text", "line"),
    [
        ("openrlhf", "x.sh", "echo hello", "x.sh: no command runs train_ppo_ray"),
        (
            "openrlhf",
            "x.sh",
            "python -m openrlhf.cli.train_ppo_ray --a 'open",
            "quotation is not closed",
        ),
        ("trl", "x.py", "def (", "x.py: line 1 is no valid Python"),
        ("trl", "x.py", "print(1)", "one call of PPOConfig is read, but there are 0"),
        ("verl", "x.yaml", "[1, 2]", "a configuration is a mapping"),
        (
            "openrlhf",
            "x.sh",
            "--algo.advantage.estimator rloo",
            "compares the responses to one prompt",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(target: str, name: str, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        import_text(target, text, name)
    assert len(caught.value.problems) == 1
    assert line in caught.value.problems[0]


@pytest.mark.parametrize(
    ("flags", "key", "why"),
    [
        ("--algo.advantage.estimator flash_reinforce", "ppo.advantage", "no counterpart here"),
        ("--reward.clip_range -5 10", "reward.clip", "symmetrically"),
        ("--train.batch_size 100", "ppo.minibatches, optim.micro_batch_size", "do not divide"),
        ("--actor.adam.lr fast", "optim.policy.lr", "'fast' is no number"),
        (
            "--algo.advantage.is_correction_level token --algo.advantage.is_correction_gating tv",
            "ppo.correction.kind",
            "not offered here",
        ),
    ],
)
def test_a_setting_that_cannot_be_taken_over_is_listed(flags: str, key: str, why: str) -> None:
    made = import_text("openrlhf", flags, "flags.txt")
    (found,) = [reason for keys, reason in made.unread.items() if keys.startswith(key)]
    assert why in found


@pytest.mark.parametrize(
    ("target", "text", "wanted"),
    [
        (
            "openrlhf",
            "--algo.advantage.estimator reinforce --algo.advantage.lambd 0.9 --critic.value_clip 0.3",
            {"ppo.lam": 0.95, "ppo.value_clip_range": 0.2},
        ),
        ("openrlhf", "--algo.kl.horizon 77", {"ppo.kl.horizon": 10000}),
        (
            "openrlhf",
            "--algo.kl.init_coef 0 --algo.kl.target 0.1",
            {
                "ppo.kl.controller": "fixed",
                "ppo.kl.target_per_token": None,
                "ppo.kl.measure": False,
            },
        ),
        ("openrlhf", "--reward.overlong_penalty_factor 2", {"reward.overlong_penalty": 1.0}),
        (
            "openrlhf",
            "--train.dynamic_batch_enable --train.max_tokens_per_gpu 4096 --train.micro_batch_size 2",
            {"optim.micro_batch_tokens": 4096, "optim.micro_batch_size": 64},
        ),
        (
            "openrlhf",
            "--train.async_enable --train.async_queue_size 2 --vllm.num_engines 4",
            {"sync.mode": "async", "sync.max_staleness": 2},
        ),
        (
            "openrlhf",
            "--train.colocate_all --actor.num_gpus_per_node 8 --vllm.num_engines 4 --vllm.tensor_parallel_size 2",
            {
                "resources.layout": "colocated",
                "resources.roles.learner.workers": 8,
                "resources.roles.rollout.workers": 4,
            },
        ),
        (
            "verl",
            "python3 -m verl.trainer.main_ppo trainer.nnodes=2 algorithm.kl_ctrl.horizon=77",
            {
                "ppo.kl.horizon": 10000,
                "resources.layout": "colocated",
                "resources.roles.critic.workers": 16,
                "resources.roles.rollout.workers": 8,
            },
        ),
    ],
)
def test_what_counts_is_taken_over_and_what_has_no_effect_is_not(
    target: str, text: str, wanted: dict[str, Any]
) -> None:
    """A configuration refuses an option beside another that switches it off."""
    assert subset(flatten(import_text(target, text, "x.sh").config), wanted) == wanted


@pytest.mark.parametrize(
    ("gpus", "roles", "share"),
    [(8, "--algo.advantage.estimator gae", "5 roles has 0.2 of"), (1, "", None)],
)
def test_shared_gpus_are_noted_as_shares_of_memory(
    gpus: int, roles: str, share: str | None
) -> None:
    flags = f"--train.colocate_all --actor.num_gpus_per_node {gpus} {roles}"
    made = import_text("openrlhf", flags, "flags.txt")
    noted = [line for line in made.report() if line.startswith("note, resources.colocate: ")]
    assert [share in line for line in noted] == ([True] if share else [])


COMMAND = "python3 -m openrlhf.cli.train_ppo_ray"


@pytest.mark.parametrize(
    ("target", "text", "line"),
    [
        # Each pass over the variables of variables makes a word a hundred times longer.
        ("openrlhf", f"A={'$B' * 100}\nB={'$C' * 100}\nC={'$D' * 100}\n{COMMAND} --x $A", "longer"),
        ("openrlhf", f"A={'x' * 1000}\n{COMMAND} {'--x $A ' * 2000}", "shorten the variables"),
        ("trl", f"PPOConfig(lr={'(' * 100_000})", "s.py"),
        ("trl", f"PPOConfig(lr={'-' * 100_000}1)", "nested too deeply"),
        ("trl", f"PPOConfig(lr={'+'.join(['1'] * 50_000)})", "nested too deeply"),
        ("trl", "PPOConfig(lr='\0')", "is no valid Python"),
    ],
    ids=["bomb", "many", "brackets", "signs", "sum", "NUL"],
)
def test_what_grows_or_nests_without_end_is_one_line(target: str, text: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        import_text(target, text, "s.py" if target == "trl" else "s.sh")
    assert len(str(caught.value).splitlines()) == 1


def test_a_literal_that_is_none_stays_open() -> None:
    read = import_text("trl", "PPOConfig(learning_rate={[]: 1})", "s.py")
    assert read.open == {"learning_rate": "{[]: 1}"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("http://scores:8000/get", "http://scores:8000/get"),
        ("http://one/get,http://two/get", None),
        ("/rewards/reward_func.py", None),
    ],
)
def test_a_reward_server_is_read_and_several_or_a_file_are_said_not_to_be(
    written: str, read: str | None
) -> None:
    text = OPENRLHF.replace("--normalize_reward", f"--remote_rm_url {written}")
    made = import_text("openrlhf", text, "train.sh")
    assert made.config.reward.url == read
    assert ("reward.model, reward.function, reward.url" in made.unread) == (read is None)
