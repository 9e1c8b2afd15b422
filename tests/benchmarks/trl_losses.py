"""Losses of TRL 1.12's ``PPOTrainer`` on given weights and tokens, as the last line of its output.

python trl_losses.py FOLDER EPOCHS, in the environment of TRL; FOLDER is made by losses.py.
Only the sampling is replaced, by the given tokens; everything else is the trainer's own code.
"""

import json
import os
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", CI="1", TRL_EXPERIMENTAL_SILENCE="1")
import torch

torch.set_num_threads(1)
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

folder, epochs = sys.argv[1], int(sys.argv[2])
given = json.load(open(f"{folder}/tokens.json"))
tokens, prompt = torch.tensor(given["tokens"]), given["prompt_tokens"]
logged = []


def given_tokens(model, queries, *_):
    """The given responses to the queries, which come in another order."""
    rows = (queries[:, None] == tokens[None, :, :prompt]).all(-1).int().argmax(1)
    return tokens[rows], model(tokens[rows]).logits[:, prompt - 1 : -1].detach()


class Recorded(PPOTrainer):
    def log(self, metrics, *args, **kwargs):
        logged.append(dict(metrics))


def load(kind, name, **more):
    return kind.from_pretrained(f"{folder}/{name}", dtype=torch.float32, **more)


ppo_trainer.batch_generation = given_tokens
args = PPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    report_to="none",
    per_device_train_batch_size=len(tokens),
    gradient_accumulation_steps=1,
    num_mini_batches=1,
    num_ppo_epochs=epochs,
    local_rollout_forward_batch_size=len(tokens),
    response_length=tokens.shape[1] - prompt,
    total_episodes=len(tokens),
    num_sample_generations=0,
    save_strategy="no",
    logging_steps=1,
    disable_tqdm=True,
    temperature=1.0,
    seed=0,
    **given["settings"],
)
rows = Dataset.from_dict({"input_ids": tokens[:, :prompt].tolist()})
Recorded(
    args=args,
    processing_class=PreTrainedTokenizerFast.from_pretrained(
        f"{folder}/policy", padding_side="left"
    ),
    model=load(AutoModelForCausalLM, "policy"),
    ref_model=load(AutoModelForCausalLM, "reference"),
    reward_model=load(AutoModelForSequenceClassification, "reward", num_labels=1),
    value_model=load(AutoModelForSequenceClassification, "reward", num_labels=1),
    train_dataset=rows,
    eval_dataset=rows,
).train()
print(json.dumps(logged[-1]))
