"""Adapters: peft's own numbers on every path, one base in memory, nothing else that changes or travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import CONTEXT, CPU, experience, role, settings, trial_config

from rlhf_core.engines.base import trained
from rlhf_core.errors import ConfigError
from rlhf_core.generation import folded, packed
from rlhf_core.generation.decoders import ModuleDecoder, decoders_of
from rlhf_core.generation.llama import plain_llama
from rlhf_core.models import forward, llama
from rlhf_core.models.load import load_policy
from rlhf_core.models.lora import SeededDropout, adapted, plain_weights, target_names
from rlhf_core.models.targets import linear_layers, matched
from rlhf_core.models.weights import buckets_of, header_of
from rlhf_core.store import LocalStore

RANK = {"model__lora__rank": 4}


def adapted_role(zoo: Zoo, name: str, family: str = "Llama", **values: Any) -> Any:
    """A role whose adapters are no longer zero."""
    made = role(name, trial_config(zoo, family, **RANK, **values))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in trained(made.model).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return made


def base_tensors(model: torch.nn.Module) -> dict[str, int]:
    """Where the tensors of the base lie."""
    return {
        name.replace(".base_layer.", "."): p.data_ptr()
        for name, p in model.named_parameters()
        if ".lora_" not in name
    }


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_the_lean_forward_is_that_of_peft(zoo: Zoo, family: str) -> None:
    from peft import LoraConfig, get_peft_model

    learner = adapted_role(zoo, "learner", family, model__lora__alpha=7.0)
    assert llama.is_llama(learner.model.model)
    names = list(adapted(learner.model))
    plain = load_policy(trial_config(zoo, family).model.policy or "", "float32", CPU)
    theirs = get_peft_model(plain, LoraConfig(r=4, lora_alpha=7, target_modules=names))  # type: ignore[arg-type]
    ours = {f"base_model.model.{n}": p for n, p in learner.model.named_parameters()}
    theirs.load_state_dict(ours, strict=False)
    assert ours.keys() == dict(theirs.named_parameters()).keys()
    rollout = role("rollout", trial_config(zoo, family)).generate
    batch = experience(zoo).rollout if family == "Llama" else _rollout(zoo, family, rollout)
    got_BT = forward.logprobs(learner.model, batch, 0.7)
    logits_BLV = theirs(input_ids=batch.tokens_BL, use_cache=False).logits[:, :-1] / 0.7
    all_BL = logits_BLV.log_softmax(-1).gather(2, batch.tokens_BL[:, 1:, None]).squeeze(2)
    places_BT = (forward.response_positions(batch)).clamp(max=all_BL.shape[1] - 1)
    want_BT = all_BL.gather(1, places_BT).masked_fill(~batch.response_mask_BT, 0.0)
    torch.testing.assert_close(got_BT, want_BT, rtol=1e-4, atol=1e-5)
    got_BT.sum().backward()
    want_BT.sum().backward()
    grads = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    assert len(grads) == 2 * len(names)
    for name, grad in grads.items():
        torch.testing.assert_close(ours[name].grad, grad, rtol=1e-3, atol=1e-5)


def _rollout(zoo: Zoo, family: str, generate: Any) -> Any:
    from tiny_rollouts import prompts

    from rlhf_core.types import Chunk

    return generate(CONTEXT, Chunk(0, prompts(trial_config(zoo, family)), 3))


@pytest.mark.parametrize(
    ("fold_below", "pack_below"),
    [(0, 0), (10**9, 0), (0, 10**9)],
    ids=["beside", "merged", "packed"],
)
@torch.no_grad()
def test_decoding_computes_the_adapters(
    zoo: Zoo, fold_below: int, pack_below: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folded, "FOLD_BELOW", fold_below)
    monkeypatch.setattr(packed, "PACK_BELOW", pack_below)
    model = adapted_role(zoo, "learner").model
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    assert plain_llama(model)
    lean, plain = decoders_of(model)(mask, 3), ModuleDecoder(model, mask)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 20, mask.shape, generator=generator)
    for _ in range(3):
        torch.testing.assert_close(lean.step(ids), plain.step(ids), rtol=1e-5, atol=2e-5)
        ids = torch.randint(2, 20, (2, 1), generator=generator)


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_adapters_change_nothing_at_first_and_alone_are_trained(zoo: Zoo, family: str) -> None:
    config = trial_config(zoo, family, **RANK)
    learner, whole = role("learner", config), role("learner", trial_config(zoo, family))
    batch = experience(zoo)
    before = {name: p.clone() for name, p in learner.model.named_parameters()}
    with torch.no_grad():
        assert torch.equal(
            forward.logprobs(learner.model, batch.rollout, 1.0),
            forward.logprobs(whole.model, batch.rollout, 1.0),
        )
    for _ in range(2):
        learner.update(CONTEXT, batch, settings())
    changed = {n for n, p in learner.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == trained(learner.model).keys()
    assert all(".lora_" in name for name in changed)


def test_the_roles_of_a_process_share_one_base(zoo: Zoo) -> None:
    config = trial_config(zoo, model__critic_init="policy", **RANK)
    learner, rollout, critic, reference = (
        role(name, config) for name in ("learner", "rollout", "critic", "reference")
    )
    whole = base_tensors(learner.model)
    assert base_tensors(rollout.model) == whole
    assert base_tensors(reference.model) == whole
    trunk = base_tensors(critic.model.trunk)
    assert set(trunk.values()) < set(whole.values())
    assert len(trunk) > 10
    assert not adapted(reference.model)
    # Their adapters are their own, and equal where they must be.
    ours, theirs = trained(learner.model), trained(rollout.model)
    assert not {p.data_ptr() for p in ours.values()} & {p.data_ptr() for p in theirs.values()}
    assert all(torch.equal(p, theirs[name]) for name, p in ours.items())


def test_another_seed_starts_other_adapters(zoo: Zoo) -> None:
    one, same, other = (
        trained(role("learner", trial_config(zoo, seed=seed, **RANK)).model) for seed in (0, 0, 1)
    )
    assert all(torch.equal(p, same[name]) for name, p in one.items())
    downs = [name for name in one if "lora_A" in name]
    assert not any(torch.equal(one[name], other[name]) for name in downs)


def test_only_adapters_travel_and_are_saved(zoo: Zoo, tmp_path: Path) -> None:
    learner, rollout = adapted_role(zoo, "learner"), role("rollout", trial_config(zoo, **RANK))
    header, buckets = learner.publish(CONTEXT)
    assert all(".lora_" in name for name, *_ in header.tensors)
    whole = header_of(role("learner", trial_config(zoo)).model, 0, 10**6)
    assert header.nbytes < 0.6 * whole.nbytes
    rollout.load_weights(CONTEXT, header, buckets)
    assert [b.checksum for b in buckets_of(rollout.model, header)] == [b.checksum for b in buckets]
    uri = LocalStore(tmp_path).uri
    entry = learner.save(CONTEXT, uri, 1)
    assert entry["bytes"] < 0.6 * whole.nbytes + 20_000
    other = role("learner", trial_config(zoo, seed=3, **RANK))
    other.load(CONTEXT, uri, entry)
    ours, theirs = trained(learner.model), trained(other.model)
    assert all(torch.equal(p, theirs[name]) for name, p in ours.items())


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Qwen2"])
def test_an_export_has_the_adapters_merged(zoo: Zoo, family: str, tmp_path: Path) -> None:
    learner = adapted_role(zoo, "learner", family)
    learner.export(CONTEXT, str(tmp_path))
    loaded = load_policy(str(tmp_path), "float32", CPU)
    assert not adapted(loaded)
    ids = torch.randint(2, 20, (2, 9))
    with torch.no_grad():
        want, got = learner.model(input_ids=ids).logits, loaded(input_ids=ids).logits
        base = load_policy(trial_config(zoo, family).model.policy or "", "float32", CPU)
        assert float((base(input_ids=ids).logits - got).abs().max()) > 0.05
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    names = {name for name, _ in plain_weights(learner.model)}
    assert names == dict(loaded.named_parameters()).keys()


def test_dropout_follows_from_the_seed(zoo: Zoo) -> None:
    x = torch.ones(400, 50)
    dropout = SeededDropout(0.3)
    assert torch.equal(dropout(x), x)
    dropout.seed = 7
    once = dropout(x)
    assert torch.equal(dropout(x), once)
    assert 0.28 < float((once == 0).float().mean()) < 0.32
    assert float(once.mean()) == pytest.approx(1.0, abs=0.02)
    dropout.seed = 8
    assert not torch.equal(dropout(x), once)


@pytest.mark.parametrize("name", ["learner", "critic"])
def test_an_update_leaves_out_inputs_and_nothing_else_does(zoo: Zoo, name: str) -> None:
    batch, found = experience(zoo), []
    for dropout, checkpointing in ((0.0, False), (0.5, False), (0.5, True)):
        made = adapted_role(
            zoo, name, model__lora__dropout=dropout, optim__gradient_checkpointing=checkpointing
        )
        made.update(CONTEXT, batch, settings(eps=1e-2))
        found.append(torch.cat([p.detach().flatten() for p in trained(made.model).values()]))
        dropouts = [m for m in made.model.modules() if isinstance(m, SeededDropout)]
        assert bool(dropouts) == bool(dropout)
        assert all(m.seed is None for m in dropouts)
    without, with_some, again = found
    assert float((without - with_some).norm()) > 1e-3
    # Computed again in the backward pass, the same inputs are left out.
    assert torch.equal(with_some, again)


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Qwen2"])
def test_the_files_of_a_model_name_the_layers_that_get_adapters(zoo: Zoo, family: str) -> None:
    source = zoo.policies[family]
    loaded = load_policy(source, "float32", CPU)
    assert sorted(linear_layers(source)) == sorted(target_names(loaded, ("all-linear",)))
    assert linear_layers("no/such-model") == []


LINEAR = ["layers.0.self_attn.q_proj", "layers.0.mlp.up_proj", "layers.1.self_attn.q_proj"]


def test_targets_are_ends_of_names() -> None:
    assert matched(LINEAR, ("all-linear",)) == LINEAR
    assert matched(LINEAR, ("q_proj",)) == [LINEAR[0], LINEAR[2]]
    assert matched(LINEAR, ("layers.0.self_attn.q_proj", "up_proj")) == LINEAR[:2]
    assert matched(LINEAR, ("self_attn.q_proj",)) == [LINEAR[0], LINEAR[2]]
    with pytest.raises(ConfigError) as caught:
        matched(LINEAR, ("q_prj", "proj", "up_proj"))
    first, second = caught.value.problems
    assert first == (
        "model.lora.targets: 'q_prj' matches no linear layer of the model; did you mean 'q_proj' or 'up_proj'?; "
        "there are q_proj, up_proj"
    )
    assert "'proj' matches no linear layer" in second
