"""The task folder: the contract between whoever makes a task and whoever trains on it.

```
DIR/task.json        this contract, see `TaskFolder.load`
DIR/policy/          Hugging Face causal language model with tokenizer
DIR/reward/          Hugging Face sequence classifier with one label, same tokenizer
DIR/heldout/         a second one, where the held-out measure is a model
DIR/prompts_*.jsonl  one {"prompt": "..."} a line; the three splits are disjoint
```
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.errors import ConfigError
from rlhf_core.paths import user_path

SCHEMA_VERSION = 1
MANIFEST = "task.json"
SPLITS = ("train", "eval", "test")


@dataclass(frozen=True)
class TaskFolder:
    """A task on disk. All paths are absolute.

    Attributes:
        path: The folder.
        name: Name of the task.
        policy: Folder of the supervised policy.
        reward_model: Folder of the learned reward model.
        reward_offset: Mean score of reference texts; the centred reward is ``score - reward_offset``.
        heldout_model: Folder of the held-out reward model, or None.
        heldout_offset: The same as ``reward_offset`` for the held-out measure.
        heldout_function: ``module:function`` of the held-out measure, or None. The function takes
            prompts, responses and metadata, three lists of one length, and returns a list of floats.
        prompts: Prompt file of each split: train, eval, test.
        max_new_tokens: Longest response the task is meant for, in tokens.
        recipe: The resolved settings the task was made with.
        metrics: What was measured while it was made.
    """

    path: Path
    name: str
    policy: Path
    reward_model: Path
    prompts: Mapping[str, Path]
    max_new_tokens: int
    heldout_model: Path | None = None
    heldout_function: str | None = None
    reward_offset: float = 0.0
    heldout_offset: float = 0.0
    recipe: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> TaskFolder:
        """Read and check a task folder; no model is loaded.

        Raises:
            ConfigError: The folder is no task, or a part that its manifest names is missing.
        """
        root = user_path(path).resolve()
        manifest = _read_manifest(root)
        reward = _section(root, manifest, "reward")
        heldout = _section(root, manifest, "heldout")
        if ("model" in heldout) == ("function" in heldout):
            raise _wrong(
                root, f"'heldout' needs either 'model' or 'function', has {sorted(heldout)}"
            )
        return cls(
            path=root,
            name=str(manifest.get("name", root.name)),
            policy=_model(root, "policy", manifest.get("policy")),
            reward_model=_model(root, "reward.model", reward.get("model")),
            prompts=_prompt_files(root, _section(root, manifest, "prompts")),
            max_new_tokens=_max_new_tokens(root, manifest),
            heldout_model=(
                _model(root, "heldout.model", heldout["model"]) if "model" in heldout else None
            ),
            heldout_function=_function(root, heldout["function"])
            if "function" in heldout
            else None,
            reward_offset=_offset(root, "reward", reward),
            heldout_offset=_offset(root, "heldout", heldout),
            recipe=manifest.get("recipe", {}),
            metrics=manifest.get("metrics", {}),
        )

    def read_prompts(self, split: str) -> list[str]:
        """Prompts of one split, in file order.

        Raises:
            ConfigError: There is no such split, or a line is not ``{"prompt": "..."}``.
        """
        if split not in self.prompts:
            raise ConfigError(f"prompt split must be one of {', '.join(SPLITS)}, got {split!r}")
        file, prompts = self.prompts[split], []
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                prompts.append(str(json.loads(line)["prompt"]))
            except (ValueError, KeyError, TypeError):
                raise ConfigError(
                    f'{file}:{number}: each line must be {{"prompt": "..."}}, got {line[:60]!r}; '
                    "write the file again"
                ) from None
        return prompts


@contextmanager
def finished_or_absent(final: Path) -> Iterator[Path]:
    """A folder to build in, beside ``final``; it takes that name when the body ends well.

    The body may be killed at any point: ``final`` then stays as it was, and what is left beside it
    starts with a dot and ``final``'s name.

    Raises:
        OSError: ``final`` exists and is not an empty folder, or the disk refuses.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    part = final.with_name(f"{part_prefix(final)}{os.getpid()}-{secrets.token_hex(4)}")
    part.mkdir()
    try:
        yield part
        part.replace(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def part_prefix(final: Path) -> str:
    """How the names of unfinished builds of ``final`` begin."""
    return f".{final.name}.part-"


def write_manifest(root: Path, manifest: Mapping[str, Any]) -> None:
    """Write ``task.json``; call it last, since its presence says that the folder is complete."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **manifest}, indent=2)
    (root / MANIFEST).write_text(text + "\n", encoding="utf-8")


def write_prompts(root: Path, splits: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Write the prompt files; returns the ``prompts`` section of the manifest."""
    section = {}
    for split in SPLITS:
        section[split] = f"prompts_{split}.jsonl"
        lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in splits[split]]
        (root / section[split]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return section


def _wrong(root: Path, what: str, remedy: str = "make the task again") -> ConfigError:
    return ConfigError(f"{root / MANIFEST}: {what}; {remedy}")


def _read_manifest(root: Path) -> dict[str, Any]:
    file = root / MANIFEST
    if not file.is_file():
        what = "is no folder" if not root.is_dir() else f"holds no {MANIFEST}"
        raise ConfigError(
            f"a task must be a folder with {MANIFEST}, but {root} {what}; "
            "give the folder that `prepare` wrote, or a built-in task's name"
        )
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _wrong(root, f"must be JSON, got {error}") from None
    if not isinstance(manifest, dict):
        raise _wrong(root, f"must hold a JSON object, got {type(manifest).__name__}")
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise _wrong(
            root,
            f"schema_version must be {SCHEMA_VERSION}, got {version!r}",
            "make the task again with this version of the toolkit",
        )
    return manifest


def _section(root: Path, manifest: Mapping[str, Any], key: str) -> dict[str, Any]:
    section = manifest.get(key)
    if not isinstance(section, dict):
        raise _wrong(root, f"{key!r} must be an object, got {section!r}")
    return section


def _model(root: Path, key: str, value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise _wrong(root, f"{key!r} must name a model folder, got {value!r}")
    folder = root / value
    for file in ("config.json", "tokenizer.json"):
        if not (folder / file).is_file():
            raise _wrong(root, f"{key!r} must name a model folder, but {folder} holds no {file}")
    if not any(folder.glob("*.safetensors")):
        raise _wrong(root, f"{key!r} must name a model folder, but {folder} has no *.safetensors")
    return folder


def _function(root: Path, value: object) -> str:
    module, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (colon and name.isidentifier() and all(p.isidentifier() for p in module.split("."))):
        raise _wrong(root, f"'heldout.function' must be 'module:function', got {value!r}")
    return f"{module}:{name}"


def _prompt_files(root: Path, section: Mapping[str, Any]) -> dict[str, Path]:
    files = {}
    for split in SPLITS:
        value = section.get(split)
        if not isinstance(value, str) or not (root / value).is_file():
            raise _wrong(root, f"'prompts.{split}' must name a file in the folder, got {value!r}")
        files[split] = root / value
    return files


def _max_new_tokens(root: Path, manifest: Mapping[str, Any]) -> int:
    value = manifest.get("max_new_tokens")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(root, f"'max_new_tokens' must be a whole number of at least 1, got {value!r}")
    return value


def _offset(root: Path, key: str, section: Mapping[str, Any]) -> float:
    value = section.get("offset", 0.0)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(root, f"'{key}.offset' must be a number, got {value!r}")
    return float(value)
