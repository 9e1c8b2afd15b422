"""What stays from one trial for the next is what a new process would read, or it is read again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import Zoo
from tiny_rollouts import CPU
from torch import nn

from rlhf_core.errors import WarmError
from rlhf_core.models.load import load_classifier, load_critic, load_policy, load_tokenizer
from rlhf_core.models.warm import Shelf, prove
from rlhf_core.node_files import claim, sweep


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path / "shelves" / "run")
    yield shelf
    shelf.close()


def read(shelf: Shelf, source: str, owner: str = "learner") -> nn.Module:
    with shelf.open(owner):
        return load_policy(source, "float32", CPU)


@torch.no_grad()
def train(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter += 1
        parameter.grad = torch.ones_like(parameter)
    for buffer in model.buffers():
        buffer += 1


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Qwen2"])
def test_a_trained_model_is_reset_to_what_was_read(zoo: Zoo, shelf: Shelf, family: str) -> None:
    source = zoo.policies[family]
    model = read(shelf, source)
    train(model)
    shelf.collect()
    again = read(shelf, source)
    assert again is model
    assert all(parameter.grad is None for parameter in again.parameters())
    prove("learner", again, load_policy(source, "float32", CPU))


def test_the_critic_is_reset_with_its_head(zoo: Zoo, shelf: Shelf) -> None:
    for reward in (zoo.rewards["same"], None):
        args = (reward, zoo.policies["Llama"], "float32", CPU, 0.5)
        with shelf.open("critic"):
            model = load_critic(*args)
        train(model)
        shelf.collect()
        with shelf.open("critic"):
            assert load_critic(*args) is model
        prove("critic", model, load_critic(*args))


def test_roles_never_share_a_model(zoo: Zoo, shelf: Shelf) -> None:
    source = zoo.policies["Llama"]
    learner, rollout = read(shelf, source), read(shelf, source, "rollout")
    assert learner is not rollout
    assert read(shelf, source) is not learner
    shelf.collect()
    assert read(shelf, source, "rollout") is rollout
    # One copy of the first weights serves both.
    assert len(list(shelf.folder.glob("*.safetensors"))) == 1


def test_another_source_is_read(zoo: Zoo, shelf: Shelf, tmp_path: Path) -> None:
    source = tmp_path / "policy"
    shutil.copytree(zoo.policies["Llama"], source)
    first = read(shelf, str(source))
    shelf.collect()
    other = load_policy(zoo.policies["Llama"], "float32", CPU)
    train(other)
    other.save_pretrained(source)  # type: ignore[operator]
    second = read(shelf, str(source))
    assert second is not first
    prove("learner", second, load_policy(str(source), "float32", CPU))
    shelf.collect()
    assert read(shelf, zoo.policies["Llama"]) is not second


def test_frozen_models_stay_as_they_are(zoo: Zoo, shelf: Shelf) -> None:
    with shelf.open("reward"):
        model = load_classifier(zoo.rewards["same"], "float32", CPU, "reward.model")
        tokenizer = load_tokenizer(zoo.rewards["same"])
    shelf.collect(checks=True)
    with shelf.open("reward"):
        assert load_classifier(zoo.rewards["same"], "float32", CPU, "reward.model") is model
        assert load_tokenizer(zoo.rewards["same"]) is tokenizer
    assert list(shelf.folder.glob("*.safetensors")) == []


def test_a_difference_is_found_once_it_is_looked_for(zoo: Zoo, shelf: Shelf) -> None:
    source = zoo.policies["Llama"]
    read(shelf, source)
    (file,) = shelf.folder.glob("*.safetensors")
    weights = load_file(file)
    weights["lm_head.weight"][0, 0] += 1
    save_file(weights, file)
    shelf.collect(checks=True)
    with pytest.raises(WarmError, match=r"learner: lm_head\.weight of the model that was kept"):
        read(shelf, source)


def test_a_changed_frozen_model_is_found_as_well(zoo: Zoo, shelf: Shelf) -> None:
    train(read(shelf, zoo.policies["Llama"], "reference"))
    shelf.collect(checks=True)
    with pytest.raises(WarmError, match="reference: "):
        read(shelf, zoo.policies["Llama"], "reference")


def test_without_room_models_are_read_again(
    zoo: Zoo, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(1, 1, 0))
    source = zoo.policies["Llama"]
    train(read(shelf, source))
    shelf.collect()
    prove("learner", read(shelf, source), load_policy(source, "float32", CPU))


HOLDER = (
    "import sys, time; from pathlib import Path; from rlhf_core.node_files import claim; "
    "claim(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
)


def test_files_go_with_the_last_process_however_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    (folder / "weights").touch()
    sweep(tmp_path)
    assert (folder / "weights").exists()
    holder.kill()
    holder.communicate()
    sweep(tmp_path)
    assert not folder.exists()
    # A folder that is claimed again is another one.
    claim(folder)
    assert list(folder.iterdir()) == [folder / "lock"]
