"""Which model a trial trains, and how large it is; nothing is built or loaded."""

from __future__ import annotations

from rlhf_core.assets import BUILTIN
from rlhf_core.config.trial import TrialConfig
from rlhf_core.models.gguf import cached_gguf, is_gguf
from rlhf_core.models.size import parameters_of
from rlhf_core.tasks.builtin import RECIPES, cached_builtin
from rlhf_core.tasks.folder import TaskFolder


def policy_source(config: TrialConfig) -> str | None:
    """Folder or hub id of the policy; None where it is not named, or is built only later."""
    task, own = config.data.task, config.model.policy
    if own is not None and is_gguf(own):
        folder = cached_gguf(own)
        return str(folder) if folder is not None else None
    if own is not None or task is None:
        return own
    if not task.startswith(BUILTIN):
        return str(TaskFolder.load(task).policy)
    name = task.removeprefix(BUILTIN)
    built = cached_builtin(name) if name in RECIPES else None
    return str(TaskFolder.load(built).policy) if built is not None else None


def policy_parameters(config: TrialConfig) -> int | None:
    """Parameters of the policy, to a few per cent where it is built only later; None: not known."""
    task, source = config.data.task or "", policy_source(config)
    name = task.removeprefix(BUILTIN)
    if source is None and task.startswith(BUILTIN) and name in RECIPES:
        recipe = RECIPES[name]
        return recipe.model.parameters(recipe.vocab)
    return parameters_of(source) if source is not None else None
