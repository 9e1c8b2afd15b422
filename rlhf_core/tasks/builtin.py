"""The built-in task: a small policy that writes film reviews, made on first use and then cached.

No download is involved: texts and hidden quality come from `rlhf_core.tasks.grammar`, the models
are trained here in well under a minute. `ensure_builtin` is safe to call from many processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock

from rlhf_core.errors import ConfigError, nearest
from rlhf_core.tasks import grammar
from rlhf_core.tasks.folder import SCHEMA_VERSION, TaskFolder, finished_or_absent, part_prefix
from rlhf_core.tasks.recipe import ModelSize, Progress, Schedule

CACHE_VARIABLE = "RLHF_SWEEPS_CACHE"
BUILD_VERSION = 1
"""Raise it when the code in `build` or `pretrain` changes what a recipe yields."""


@dataclass(frozen=True)
class BuiltinRecipe:
    """Everything the built-in task depends on.

    Attributes:
        seed: Seeds sentences, prompts, weights and orders.
        sentences: Sentences the policy and the reward model learn from.
        vocab: Most tokens of the tokenizer.
        model: Shape of both models.
        policy: Schedule of the policy.
        reward: Schedule of the reward model, in pairs.
        train_prompts, eval_prompts, test_prompts: Size of each prompt split.
        samples: Responses sampled from the policy to centre the reward and to measure.
        max_new_tokens: Longest response.
        threads: Torch threads while building; they change the last bits of the weights.
    """

    seed: int = 0
    sentences: int = 12_000
    vocab: int = 1024
    model: ModelSize = field(default_factory=ModelSize)
    policy: Schedule = field(default_factory=lambda: Schedule(steps=240, batch=64, lr=4e-3))
    reward: Schedule = field(default_factory=lambda: Schedule(steps=100, batch=64, lr=2e-3))
    train_prompts: int = 600
    eval_prompts: int = 192
    test_prompts: int = 384
    samples: int = 512
    max_new_tokens: int = 24
    threads: int = 1


# Stands before the name of such a task in data.task.
BUILTIN = "builtin:"
RECIPES = {"reviews": BuiltinRecipe()}


def ensure_builtin(
    name: str = "reviews",
    progress: Progress | None = None,
    recipe: BuiltinRecipe | None = None,
) -> Path:
    """Folder of a built-in task; built if it is not in the cache yet.

    The cache is ``$RLHF_SWEEPS_CACHE``, else ``$XDG_CACHE_HOME/rlhf-sweeps``, else
    ``~/.cache/rlhf-sweeps``. Processes that ask at once share one build.

    Args:
        name: Name of the task, one of `RECIPES`.
        progress: Called with stage, steps done and steps there are; only by the process that builds.
        recipe: Another recipe than the task's own, under a place of its own in the cache.

    Raises:
        ConfigError: There is no such task, or the cache folder cannot be written.
    """
    if name not in RECIPES:
        known = ", ".join(RECIPES)
        raise ConfigError(
            f"built-in task must be one of {known}, got {name!r}{nearest(name, RECIPES)}"
        )
    recipe = recipe or RECIPES[name]
    final = _place(name, recipe)
    if _finished(final):
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(final.with_suffix(".lock")):
            if not _finished(final):
                _clear(final)
                # Imported here, since a finished task is found without torch and transformers.
                from rlhf_core.tasks.build import build

                with finished_or_absent(final) as part:
                    build(name, recipe, part, progress)
    except OSError as error:
        raise ConfigError(
            f"the cache folder must be writable, but {error.filename or final.parent}: {error.strerror or error}; "
            f"set {CACHE_VARIABLE} to another folder"
        ) from error
    return final


def cached_builtin(name: str) -> Path | None:
    """Folder of a built-in task, or None where it has not been built yet."""
    final = _place(name, RECIPES[name])
    return final if _finished(final) else None


def _place(name: str, recipe: BuiltinRecipe) -> Path:
    return cache_folder() / "tasks" / f"{name}-{recipe_key(recipe)}"


def cache_folder() -> Path:
    """The user's cache folder of this toolkit; it need not exist yet."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().resolve() / "rlhf-sweeps"


def recipe_key(recipe: BuiltinRecipe) -> str:
    """Key of what a recipe yields: settings, versions of code and contract, and the grammar."""
    parts = [asdict(recipe), BUILD_VERSION, SCHEMA_VERSION, grammar.fingerprint()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _finished(folder: Path) -> bool:
    try:
        TaskFolder.load(folder)
    except ConfigError:
        return False
    return True


def _clear(final: Path) -> None:
    """Remove what killed builds left; only for the holder of the lock."""
    for stale in final.parent.glob(part_prefix(final) + "*"):
        shutil.rmtree(stale, ignore_errors=True)
    if final.exists():
        shutil.rmtree(final)
