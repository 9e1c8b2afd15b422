"""Low-rank adapters: added to a model, delivered without it, merged where it leaves the project.

The base is frozen, so roles of a process that start from the same source share its tensors; a role without
adapters is the reference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlhf_core.config.engines import LoraConfig
from rlhf_core.models.targets import matched
from rlhf_core.seeding import derive

ADAPTER = "default"
M = TypeVar("M", bound=nn.Module)


class SeededDropout(nn.Module):
    """Dropout whose mask follows from a seed, so that a pass that is computed again leaves out the same.

    Attributes:
        seed: Of the pass; None: nothing is left out.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.seed: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.seed is None:
            return x
        generator = torch.Generator(device=x.device).manual_seed(self.seed)
        kept = torch.rand(x.shape, device=x.device, generator=generator) >= self.share
        return x * kept / (1 - self.share)


def with_shared_tensors(model: M) -> M:
    """A copy of the modules on the same tensors."""
    tensors = [*model.parameters(), *model.buffers()]
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    # What the tensors came with lives as long as whoever uses them; in a tuple it is no module of the twin.
    twin.source = (model,)  # type: ignore[assignment]
    return twin


def add_adapters(model: nn.Module, lora: LoraConfig, seed: int, role: str) -> None:
    """Freezes ``model`` and adds adapters to it, in place; they change nothing until they are trained.

    Args:
        model: Its linear layers are replaced by ones with adapters, on the same weights.
        lora: ``rank`` is above 0.
        seed: Of the trial.
        role: ``policy`` or ``critic``.

    Raises:
        ConfigError: If a target matches no module.
    """
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model

    names = target_names(model, lora.targets)
    model.requires_grad_(False)
    # The layers of GPT-2 hold their weights transposed.
    turned = not all(isinstance(model.get_submodule(name), nn.Linear) for name in names)
    plain = PeftConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=names, fan_in_fan_out=turned
    )  # type: ignore[arg-type]
    inject_adapter_in_model(plain, model)
    for index, (name, layer) in enumerate(adapted(model).items()):
        down, up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        generator = torch.Generator().manual_seed(derive(seed, "adapter", role, index, name))
        bound = down.shape[1] ** -0.5
        with torch.no_grad():
            down.copy_(torch.empty(down.shape).uniform_(-bound, bound, generator=generator))
            up.zero_()
        if lora.dropout:
            layer.lora_dropout[ADAPTER] = SeededDropout(lora.dropout)


def target_names(model: nn.Module, targets: Iterable[str]) -> list[str]:
    """Dotted names of the modules of ``model`` that ``targets`` mean.

    Raises:
        ConfigError: If one of them matches none.
    """
    from transformers.pytorch_utils import Conv1D

    head = getattr(model, "lm_head", None)
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]
    return matched(linear, tuple(targets))


def is_adapted(module: nn.Module) -> bool:
    """Whether ``module`` is a linear layer with an adapter."""
    return hasattr(module, "base_layer")


def adapted(model: nn.Module) -> dict[str, Any]:
    """Layers with adapters, by dotted name."""
    return {name: module for name, module in model.named_modules() if is_adapted(module)}


def plain_weights(
    model: nn.Module,
    whole: Callable[[Iterable[nn.Parameter]], AbstractContextManager[None]] = nullcontext,
) -> Iterator[tuple[str, Tensor]]:
    """The weights as a model without adapters names them, adapters merged; one tensor at a time.

    Args:
        model: With or without adapters.
        whole: As ``TrainingEngine.whole``.
    """
    layers = adapted(model)
    for name, parameter in model.named_parameters():
        owner, _, rest = name.rpartition(".base_layer.")
        if owner in layers and rest == "weight":
            layer = layers[owner]
            down, up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
            with whole([parameter, down, up]), torch.no_grad():
                yield f"{owner}.weight", parameter + layer.get_delta_weight(ADAPTER).to(parameter)
        elif ".lora_" not in name:
            with whole([parameter]):
                yield name.replace(".base_layer.", "."), parameter.detach()
