"""The program that an export to TRL writes."""

from __future__ import annotations

from typing import Any

from analysis.export.render import comment, variables
from analysis.export.rules import Applied, Var

IMPORTS = """\
import json
import os

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl.experimental.ppo import PPOConfig, PPOTrainer
"""

MAIN = '''

def tokenizer():
    found = AutoTokenizer.from_pretrained(ARGS.sft_model_path, padding_side="left")
    if found.pad_token is None:
        found.add_special_tokens({"pad_token": "[PAD]"})
    return found


def prompts(tok):
    """Token ids of the training prompts; long ones lose their beginning."""
    with open(PROMPTS, encoding="utf-8") as file:
        texts = [json.loads(line)["prompt"] for line in file if line.strip()]
    if CHAT_TEMPLATE == "auto" and tok.chat_template:
        turns = [[{"role": "user", "content": text}] for text in texts]
        texts = [tok.apply_chat_template(t, tokenize=False, add_generation_prompt=True) for t in turns]
    return Dataset.from_dict({"input_ids": [tok(text)["input_ids"][-MAX_PROMPT_TOKENS:] for text in texts]})


def classifier(path):
    return AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)


def main():
    tok = tokenizer()
    data = prompts(tok)
    start = ARGS.reward_model_path if CRITIC == "reward" else ARGS.sft_model_path
    trainer = PPOTrainer(
        args=ARGS,
        processing_class=tok,
        model=AutoModelForCausalLM.from_pretrained(ARGS.sft_model_path),
        ref_model=AutoModelForCausalLM.from_pretrained(ARGS.sft_model_path),
        reward_model=classifier(ARGS.reward_model_path),
        value_model=classifier(start),
        train_dataset=data,
        eval_dataset=data.select(range(min(len(data), ARGS.per_device_train_batch_size))),
    )
    trainer.train()
    trainer.save_model(ARGS.output_dir)


if __name__ == "__main__":
    main()
'''


def script(applied: Applied, header: str) -> str:
    """A program with the configuration as ``ARGS``."""
    constants, arguments = [], []
    for settings, notes in applied.settings:
        for name, value in settings.items():
            if name.isupper():
                constants.append(f"{name} = {_literal(value)}\n")
        mine = {name: value for name, value in settings.items() if not name.isupper()}
        lines = [f"    # {key}: {note}\n" for key, note in notes.items()]
        arguments += lines + [f"    {name}={_literal(value)},\n" for name, value in mine.items()]
    needed = [f"  {name:<16} {what}" for name, what in variables(applied).items()]
    given = comment(["From the environment:", *needed]) if needed else ""
    head = comment(
        [f"Run it by: accelerate launch --num_processes {applied.theirs['PROCESSES']} FILE"]
    )
    body = head + given + "".join(constants) + "\nARGS = PPOConfig(\n" + "".join(arguments) + ")\n"
    return f"{header}\n{IMPORTS}\n{body}{MAIN}"


def _literal(value: Any) -> str:
    return f'os.environ["{value.name}"]' if isinstance(value, Var) else repr(value)
