"""What a trial reads: models, reward functions, prompt files; named by the configuration or by its task.

Torch-free. ``problems`` is the check before anything heavy starts; ``resolve`` also builds a built-in task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.config.measured import unmeasured
from rlhf_core.config.trial import CheckpointConfig, TrialConfig
from rlhf_core.errors import ConfigError, nearest
from rlhf_core.generation.vllm_checks import unserved, vllm_missing
from rlhf_core.imports import import_named
from rlhf_core.models.gguf import ensure_gguf, is_gguf
from rlhf_core.models.policy import policy_source
from rlhf_core.models.sources import problem_of_model
from rlhf_core.models.targets import linear_layers, matched
from rlhf_core.paths import problem_of_url, user_path
from rlhf_core.tasks.builtin import BUILTIN, RECIPES, ensure_builtin
from rlhf_core.tasks.folder import TaskFolder
from rlhf_core.tasks.recipe import Progress

RewardFunction = Callable[[list[str], list[str], list[Mapping[str, Any]]], list[float]]


@dataclass(frozen=True)
class RewardSource:
    """A sequence classifier, a Python function or a server.

    Attributes:
        model: Folder or hub id, or None.
        function: Import path ``module:function``, or None.
        offset: Subtracted from the model's score.
        url: Address of a reward server, or None.
    """

    model: str | None = None
    function: str | None = None
    offset: float = 0.0
    url: str | None = None


@dataclass(frozen=True)
class Assets:
    """Everything a trial reads, resolved."""

    policy: str
    reference: str
    reward: RewardSource
    heldout: RewardSource | None
    extra: Mapping[str, RewardSource]
    prompts: Mapping[str, str]


def task_folder(config: TrialConfig, progress: Progress | None = None) -> TaskFolder | None:
    """The task of the configuration, or None; a built-in task is built if it is not cached."""
    task = config.data.task
    if task is None:
        return None
    if task.startswith(BUILTIN):
        return TaskFolder.load(ensure_builtin(task.removeprefix(BUILTIN), progress))
    return TaskFolder.load(Path(task))


def make_ready(config: TrialConfig, progress: Progress | None = None) -> None:
    """Before anything is launched: makes what is read, and knocks at reward servers.

    Raises:
        ConfigError: Something cannot be made or sampled from, or a server does not answer.
    """
    make_sources(config, progress)
    found = unserved(config)
    if found:
        raise ConfigError(found)
    unreachable = [p for key, url in reward_urls(config).items() if (p := problem_of_url(url, key))]
    if unreachable:
        raise ConfigError(unreachable)


def make_sources(config: TrialConfig, progress: Progress | None = None) -> None:
    """Builds the task and converts GGUF files where this machine's cache lacks them."""
    task_folder(config, progress)
    for key, source in (
        ("model.policy", config.model.policy),
        ("model.reference", config.model.reference),
    ):
        _policy(source, key, progress)


def reward_urls(config: TrialConfig) -> dict[str, str]:
    """``{configuration key: address}`` of every reward server that the configuration names."""
    reward = config.reward
    named = {"reward.url": reward.url, "reward.heldout_url": reward.heldout_url}
    named |= {f"reward.extra.{name}.url": part.url for name, part in reward.extra.items()}
    return {key: url for key, url in named.items() if url is not None}


def resolve(config: TrialConfig, progress: Progress | None = None) -> Assets:
    """Names everything; what the configuration leaves open comes from its task.

    Raises:
        ConfigError: If neither names a policy, a reward or prompts, or one of them cannot be made.
    """
    task = task_folder(config, progress)
    reward, data = config.reward, config.data
    policy = _policy(config.model.policy, "model.policy", progress)
    policy = policy or (str(task.policy) if task else None)
    proxy = _source(reward.model, reward.function, reward.url, reward.offset)
    if proxy is None and task:
        proxy = RewardSource(str(task.reward_model), None, task.reward_offset)
    heldout = _source(
        reward.heldout_model, reward.heldout_function, reward.heldout_url, reward.heldout_offset
    )
    if heldout is None and task:
        model = str(task.heldout_model) if task.heldout_model else None
        heldout = RewardSource(model, task.heldout_function, task.heldout_offset)
    prompts = {
        split: path or (str(task.prompts[split]) if task else None)
        for split, path in _prompt_files(config).items()
    }
    # A user's own prompts serve every split that is not named, rather than none.
    train = data.prompts or prompts["train"]
    missing = [
        key
        for key, value in (
            ("model.policy", policy),
            ("reward.model", proxy),
            ("data.prompts", train),
        )
        if value is None
    ]
    if missing or policy is None or proxy is None or train is None:
        raise ConfigError([f"{key} must be named where data.task is null" for key in missing])
    return Assets(
        policy=policy,
        reference=_policy(config.model.reference, "model.reference", progress) or policy,
        reward=proxy,
        heldout=heldout,
        extra={
            name: RewardSource(_place(part.model), part.function, part.offset, part.url)
            for name, part in reward.extra.items()
        },
        prompts={split: path or train for split, path in prompts.items()},
    )


def _source(
    model: str | None, function: str | None, url: str | None, offset: float
) -> RewardSource | None:
    if model is None and function is None and url is None:
        return None
    return RewardSource(_place(model), function, offset if model else 0.0, url)


def _policy(source: str | None, key: str, progress: Progress | None) -> str | None:
    """Where a language model lies; that of a GGUF file in the cache, where it is put if it is not there."""
    if source is not None and is_gguf(source):
        return str(ensure_gguf(source, key, progress))
    return _place(source)


def _place(source: str | None) -> str | None:
    """A folder written with ``~`` in full; a hub id as it is."""
    return str(user_path(source)) if source and source.startswith("~") else source


def _prompt_files(config: TrialConfig) -> dict[str, str | None]:
    data = config.data
    return {"train": data.prompts, "eval": data.eval_prompts, "test": data.test_prompts}


def problems(config: TrialConfig) -> list[str]:
    """What can be seen to be wrong with a configuration's assets, one line each, nothing loaded."""
    found = []
    task = config.data.task
    try:
        if task is not None and task.startswith(BUILTIN):
            name = task.removeprefix(BUILTIN)
            if name not in RECIPES:
                found.append(
                    f"data.task: no built-in task {name!r}; there is {', '.join(RECIPES)}"
                    + nearest(name, RECIPES)
                )
        elif task is not None:
            TaskFolder.load(Path(task))
    except ConfigError as error:
        found += [f"data.task: {line}" for line in error.problems]
    if task is None:
        found += [*_missing(config), *_no_best(config)]
    models = {
        "model.policy": config.model.policy,
        "model.reference": config.model.reference,
        "reward.model": config.reward.model,
        "reward.heldout_model": config.reward.heldout_model,
        **{f"reward.extra.{name}.model": p.model for name, p in config.reward.extra.items()},
    }
    found += [
        p
        for key, source in models.items()
        if source
        and (
            p := problem_of_model(
                source,
                key,
                tokenizer=key != "model.reference",
                scores=key.startswith("reward."),
            )
        )
    ]
    functions = {
        "reward.function": config.reward.function,
        "reward.heldout_function": config.reward.heldout_function,
        **{f"reward.extra.{name}.function": p.function for name, p in config.reward.extra.items()},
    }
    for key, path in functions.items():
        if path is not None:
            found += _try(lambda path=path, key=key: load_function(path, key))
    found += _adapter_problems(config)
    found += vllm_missing(config)
    for split, file in _prompt_files(config).items():
        key = "data.prompts" if split == "train" else f"data.{split}_prompts"
        if file is not None:
            found += _try(lambda file=file, key=key: read_prompts(Path(file), key))
    return found


def _adapter_problems(config: TrialConfig) -> Sequence[str]:
    """Targets that no layer of the policy has, as far as its files tell."""
    lora = config.model.lora
    if not lora.rank:
        return ()
    try:
        policy = policy_source(config)
    except ConfigError:
        # It is told of the task.
        return ()
    names = linear_layers(policy) if policy is not None else []
    return _try(lambda: matched(names, lora.targets)) if names else ()


def _missing(config: TrialConfig) -> list[str]:
    named = {
        "model.policy": config.model.policy,
        "reward.model, reward.function or reward.url": config.reward.model
        or config.reward.function
        or config.reward.url,
        "data.prompts": config.data.prompts,
    }
    return [f"{key} must be named where data.task is null" for key, v in named.items() if not v]


def _no_best(config: TrialConfig) -> list[str]:
    """A metric that chooses among checkpoints, but never is measured; the default is no matter with only one."""
    checkpoint = config.checkpoint
    several = checkpoint.every_iterations is not None or checkpoint.every_minutes is not None
    why = unmeasured(config, checkpoint.metric)
    asked = several or checkpoint.metric != CheckpointConfig().metric
    return [f"checkpoint.metric: {checkpoint.metric!r} {why}"] if why and asked else []


def _try(check: Callable[[], object]) -> Sequence[str]:
    try:
        check()
    except ConfigError as error:
        return error.problems
    return ()


def load_function(path: str, key: str) -> RewardFunction:
    """The function behind ``package.module:function``.

    Raises:
        ConfigError: If the path is malformed, or the module or the function does not exist.
    """
    function = import_named(path, key, "function")
    if not callable(function):
        raise ConfigError(
            f"{key}: {path!r} is a {type(function).__name__}, which cannot be called; name a function"
        )
    return function  # type: ignore[no-any-return]


def read_prompts(path: Path, key: str = "data.prompts") -> list[dict[str, Any]]:
    """Rows of a prompt file, each with a ``prompt`` (text, or a list of chat messages).

    A ``.jsonl`` file has one object a line; any other file has one prompt a line. Empty lines are skipped.

    Raises:
        ConfigError: If the file is missing, unreadable, malformed or empty.
    """
    try:
        # Not splitlines(): JSON text may hold line separators of Unicode.
        lines = user_path(path, key).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{key}: {str(path)!r} cannot be read: {reason}") from None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        rows.append(_row(line, f"{key}: {path} line {number}", path.suffix == ".jsonl"))
    if not rows:
        raise ConfigError(f"{key}: {str(path)!r} holds no prompt; write one a line")
    return rows


def _row(line: str, where: str, as_json: bool) -> dict[str, Any]:
    if not as_json:
        return {"prompt": line.strip()}
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON: {error}") from None
    if not isinstance(row, dict) or not row.get("prompt"):
        raise ConfigError(
            f"{where} must be an object with a non-empty 'prompt', but is {line[:60]!r}"
        )
    if not isinstance(row["prompt"], str | list):
        raise ConfigError(f"{where}: 'prompt' is text or a list of messages, not {row['prompt']!r}")
    if isinstance(row["prompt"], list) and not all(map(_is_message, row["prompt"])):
        raise ConfigError(
            f"{where}: each message of 'prompt' is an object with a 'role' and a 'content', both text"
        )
    return row


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and all(
        isinstance(message.get(key), str) for key in ("role", "content")
    )
