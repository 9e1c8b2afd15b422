"""What benchmarks share: the model and tokenizer of the work they time, and their one line of JSON."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.trial import PPOTrial

VOCABULARY = 1000
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 32, 16, 32
SIZES = {"small": {"width": 64, "layers": 2}, "large": {"width": 128, "layers": 4}}


def llama_config(size: str, **more: Any) -> Any:
    """Llama of 0.26 M (small) or 1.3 M (large) parameters."""
    from transformers import LlamaConfig

    width = SIZES[size]["width"]
    shape = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": SIZES[size]["layers"],
    }
    return LlamaConfig(
        vocab_size=VOCABULARY,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
        **(shape | more),
    )


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"t{i}": i + 3 for i in range(VOCABULARY - 3)}
    backend = Tokenizer(
        models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2, **words}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)


def save_models(folder: Path, size: str) -> dict[str, str]:
    """A random policy and reward model with a tokenizer of whole words, and a prompt file."""
    import torch
    from transformers import LlamaForCausalLM, LlamaForSequenceClassification

    torch.manual_seed(0)
    LlamaForCausalLM(llama_config(size)).save_pretrained(folder / "policy")
    LlamaForSequenceClassification(llama_config(size, num_labels=1)).save_pretrained(
        folder / "reward"
    )
    for name in ("policy", "reward"):
        save_tokenizer(folder / name)
    drawn = torch.randint(0, VOCABULARY - 3, (512, PROMPT_TOKENS)).tolist()
    (folder / "prompts.txt").write_text("\n".join(" ".join(f"t{i}" for i in row) for row in drawn))
    return {name: str(folder / name) for name in ("policy", "reward", "prompts.txt")}


@contextmanager
def trial_of(folder: Path, size: str, threads: int) -> Iterator[PPOTrial]:
    """The trial of the iteration benchmarks, in this process: nine iterations, one evaluation of two prompts.

    Args:
        folder: An empty folder, for the models.
        size: One of ``SIZES``.
        threads: Compute threads.
    """
    made = save_models(folder, size)
    values = {
        "model": {"policy": made["policy"]},
        "reward": {"model": made["reward"]},
        "data": {"prompts": made["prompts.txt"]},
        "rollout": {"prompts_per_iteration": PROMPTS, "max_new_tokens": NEW_TOKENS},
        "ppo": {"epochs": 2, "minibatches": 1},
        "resources": {"threads": threads},
        "budget": {"iterations": 9},
        "eval": {"every_iterations": 1000, "prompts": 2},
    }
    with running(values) as trial:
        yield trial


@contextmanager
def running(values: dict[str, Any]) -> Iterator[PPOTrial]:
    """The trial that ``values`` describe, in this process."""
    from rlhf_core.config import resolve_trial
    from rlhf_core.runtime.local import LocalRuntime
    from rlhf_core.runtime.placement import plan_trial
    from rlhf_core.trial import PPOTrial

    config = resolve_trial(values, "benchmark")
    plan = plan_trial(config)
    trial = PPOTrial(config, LocalRuntime(config, plan), plan)
    try:
        yield trial
    finally:
        trial.close()


def machine_speed() -> tuple[float, float]:
    """What this machine does at best, in FLOP/s and bytes/s: a product of large matrices, and a copy."""
    import torch

    one, other = torch.randn(1024, 2048), torch.randn(2048, 2048)
    source, target = torch.randn(2**26), torch.empty(2**26)
    flops = 2 * 1024 * 2048 * 2048 / _best(lambda: one @ other)
    # A copy reads as much as it writes.
    return flops, 2 * source.nbytes / _best(lambda: target.copy_(source))


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of ten."""
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def report(
    name: str, ours: list[float], theirs: list[float], target: float, unit: str, **more: Any
) -> str:
    """The line of JSON: medians, ranges, and the ratio of the medians (above 1: this project is better)."""
    middle, other = statistics.median(ours), statistics.median(theirs)
    ratio = other / middle
    return json.dumps(
        {
            "name": name,
            "ratio": round(ratio, 2),
            "target": target,
            "ok": ratio >= target,
            "repeats": len(ours),
            "median_ours": round(middle, 4),
            "median_theirs": round(other, 4),
            "range_ours": [round(min(ours), 4), round(max(ours), 4)],
            "range_theirs": [round(min(theirs), 4), round(max(theirs), 4)],
            "unit": unit,
            "versions": {
                "python": platform.python_version(),
                **{p: version(p) for p in ("torch", "transformers")},
            },
            **more,
        }
    )
