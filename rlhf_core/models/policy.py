"""Which model a trial trains, and how large it is; nothing is built or loaded."""

from __future__ import annotations

from rlhf_core.config.trial import TrialConfig
from rlhf_core.models.gguf import cached_gguf, is_gguf
from rlhf_core.models.size import parameters_of
from rlhf_core.tasks.builtin import BUILTIN, RECIPES, cached_builtin
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
    """Parameters of the policy, for a built-in task counted from its recipe, norms aside; None: not known."""
    name = (config.data.task or "").removeprefix(BUILTIN)
    if config.model.policy is None and config.data.task == BUILTIN + name:
        recipe = RECIPES.get(name)
        return None if recipe is None else recipe.model.parameters(recipe.vocab)
    source = policy_source(config)
    return None if source is None else parameters_of(source)
