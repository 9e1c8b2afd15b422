"""Which layers of a model get adapters, by name alone; from its folder without loading it. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable

from rlhf_core.config.engines import ALL_LINEAR
from rlhf_core.errors import ConfigError, nearest
from rlhf_core.models.size import tensors_of


def linear_layers(source: str) -> list[str]:
    """Dotted names of the linear layers within the blocks of a model; empty where its files do not tell.

    Args:
        source: A folder, or a hub id whose files lie in the local cache.
    """
    return [
        name.removesuffix(".weight")
        for name, shape in tensors_of(source)
        if name.endswith(".weight") and len(shape) == 2 and any(map(str.isdigit, name.split(".")))
    ]


def matched(linear: Iterable[str], targets: tuple[str, ...]) -> list[str]:
    """Those of the dotted names ``linear`` that ``targets`` mean: all, or those that end with one of them.

    Raises:
        ConfigError: One line for each target that matches none.
    """
    linear = list(linear)
    if targets == (ALL_LINEAR,):
        return linear
    found = {t: [n for n in linear if n == t or n.endswith(f".{t}")] for t in targets}
    ends = sorted({name.rpartition(".")[2] for name in linear})
    lost = [
        f"model.lora.targets: {target!r} matches no linear layer of the model{nearest(target, ends)}; "
        f"there are {', '.join(ends)}"
        for target, names in found.items()
        if not names
    ]
    if lost:
        raise ConfigError(lost)
    wanted = {name for names in found.values() for name in names}
    return [name for name in linear if name in wanted]
