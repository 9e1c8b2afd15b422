"""Native generation against ``model.generate`` of transformers: same model, same prompts, full-length responses.

python tests/benchmarks/generation.py [--quick] [--size small|large] [--threads N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from common import NEW_TOKENS, PROMPT_TOKENS, PROMPTS, VOCABULARY, llama_config, report
from transformers import LlamaForCausalLM

from rlhf_core.generation.sampler import Sampling, sample

TARGET = 2.0


def sides(size: str) -> tuple[Callable[[int], Any], Callable[[int], Any]]:
    """One batch of ours and of theirs, as functions of the seed."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config(size)).eval()
    # Nothing ends a response early: both sides make every token.
    model.generation_config.eos_token_id = None
    ids = torch.randint(3, VOCABULARY, (PROMPTS, PROMPT_TOKENS))
    mask, rows = torch.ones_like(ids), ids.tolist()
    sampling = Sampling(NEW_TOKENS, 1.0, stop_ids=(VOCABULARY,), pad_id=0)

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
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--size", choices=("small", "large"), default="small")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ours, theirs = sides(args.size)
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for seed in range(4 if args.quick else 25):
        for name, side in (("ours", ours), ("theirs", theirs)):
            start = time.perf_counter()
            side(seed)
            seconds[name].append(time.perf_counter() - start)
    print(
        report(
            "generation", seconds["ours"][1:], seconds["theirs"][1:], TARGET, "s/batch",
            size=args.size, threads=args.threads,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
