"""A frozen role that a sweep serves to its trials: what it reads, what it is by content, where it goes. No Ray.

A service is given a configuration in which everything but what it may read has its default, and no other
assets than its own: what the fingerprint leaves out cannot change a number.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash

from rlhf_core.assets import Assets, RewardSource, resolve
from rlhf_core.config.resources import FROZEN
from rlhf_core.config.reward import RewardComponent
from rlhf_core.config.trial import TrialConfig
from rlhf_core.models.content import digest
from rlhf_core.runtime.placement import PlacementPlan, plan_service

NOTHING = RewardSource()


@dataclass(frozen=True)
class ServiceOrder:
    """All that a service is made of.

    Attributes:
        role: Its role.
        config: What the role may read, everything else at its default.
        assets: The models and functions of the role, and no others.
        fingerprint: What ``fingerprint`` says of them.
    """

    role: str
    config: TrialConfig
    assets: Assets
    fingerprint: str

    @property
    def name(self) -> str:
        """``reference-1a2b3c``."""
        return f"{self.role}-{self.fingerprint[:6]}"

    @property
    def merge(self) -> bool:
        return bool(getattr(self.config.resources.roles, self.role).merge)


@dataclass(frozen=True)
class SharedRole:
    """The role of a trial that a service is to have.

    Attributes:
        role: reference or reward.
        trial: The trial's configuration.
        plan: Where the service's replicas go.
    """

    role: str
    trial: TrialConfig = field(repr=False)
    plan: PlacementPlan = field(repr=False)

    @property
    def key(self) -> str:
        """Equal for roles that are named equally; reads no file, so it serves a plan."""
        return f"{self.role} {reduced(self.role, self.trial).model_dump_json()}"

    @cached_property
    def order(self) -> ServiceOrder:
        """The service it needs; reads every file of its models.

        Raises:
            ConfigError: If one of them cannot be read.
        """
        config, assets = reduced(self.role, self.trial), _own(self.role, resolve(self.trial))
        return ServiceOrder(self.role, config, assets, fingerprint(self.role, config, assets))


def shared_roles(config: TrialConfig) -> tuple[SharedRole, ...]:
    """The roles of a trial that it has of services."""
    return tuple(
        SharedRole(role, config, plan_service(config.resources, role))
        for role in FROZEN
        if role in config.roles and config.resources.is_shared(role)
    )


def reduced(role: str, config: TrialConfig) -> TrialConfig:
    """``config`` with all at its default that a service of ``role`` does not read."""
    kept, empty = config.resources, TrialConfig()
    roles = empty.resources.roles.model_copy(update={role: getattr(kept.roles, role)})
    resources = empty.resources.model_copy(
        update={"threads": kept.threads, "labels": kept.labels, "roles": roles}
    )
    sizes = ("micro_batch_size", "micro_batch_tokens")
    optim = empty.optim.model_copy(update={name: getattr(config.optim, name) for name in sizes})
    named = {"dtype": config.model.dtype, "device": config.model.device}
    data, reward = {"task": config.data.task}, {}
    if role == "reference":
        named["reference"] = config.model.reference or config.model.policy
        # The task's policy counts where none is named.
        data = data if named["reference"] is None else {}
    else:
        named["policy"] = config.model.policy
        data["chat_template"] = config.data.chat_template
        reward = _read(config)
    return empty.model_copy(
        update={
            "model": empty.model.model_copy(update=named),
            "data": empty.data.model_copy(update=data),
            "reward": empty.reward.model_copy(update=reward),
            "optim": optim,
            "resources": resources,
        }
    )


def _read(config: TrialConfig) -> dict[str, Any]:
    """Options that the reward role reads; weights, clips and norms are the trial's."""
    reward = config.reward
    names = (
        "model", "function", "url", "offset",
        "heldout_model", "heldout_function", "heldout_url", "heldout_offset",
        "workers", "timeout_s", "url_batch_size", "url_retries",
    )  # fmt: skip
    extra = {
        name: RewardComponent(
            model=part.model, function=part.function, url=part.url, offset=part.offset
        )
        for name, part in reward.extra.items()
    }
    return {**{name: getattr(reward, name) for name in names}, "extra": extra}


def _own(role: str, assets: Assets) -> Assets:
    if role == "reference":
        return Assets("", assets.reference, NOTHING, None, {}, {})
    return Assets(assets.policy, "", assets.reward, assets.heldout, assets.extra, {})


def fingerprint(role: str, config: TrialConfig, assets: Assets) -> str:
    """Equal where the role's numbers are: contents in place of names, and everything else that it reads.

    Args:
        role: reference or reward.
        config: As ``reduced`` makes it.
        assets: Those of the role.

    Raises:
        ConfigError: A model cannot be read.
    """
    if role == "reference":
        models: dict[str, Any] = {"reference": digest(assets.reference, "model.reference")}
    else:
        models = {"tokenizer": digest(assets.policy, "model.policy", weights=False)}
        sources = {"reward": assets.reward, "heldout": assets.heldout, **_prefixed(assets.extra)}
        models |= {name: _content(source, name) for name, source in sources.items() if source}
    read = config.model_dump(
        mode="json",
        exclude={
            "model": {"policy", "reference"},
            "data": {"task"},
            "reward": {
                "model", "function", "url", "offset", "extra",
                "heldout_model", "heldout_function", "heldout_url", "heldout_offset",
            },
        },
    )  # fmt: skip
    text = json.dumps([role, read, models], sort_keys=True)
    return xxhash.xxh3_128_hexdigest(text.encode())


def _prefixed(extra: Mapping[str, RewardSource]) -> dict[str, RewardSource]:
    return {f"reward.extra.{name}": source for name, source in extra.items()}


def _content(source: RewardSource, key: str) -> dict[str, Any]:
    found = asdict(source)
    if source.model is not None:
        found["model"] = digest(source.model, key)
    if source.function is not None:
        module = source.function.partition(":")[0]
        spec = importlib.util.find_spec(module)
        origin = Path(spec.origin) if spec is not None and spec.origin else None
        # The text of a function's own module; compiled ones are known by name.
        text = origin.read_bytes() if origin is not None and origin.is_file() else b""
        found["text"] = xxhash.xxh3_128_hexdigest(text)
    return found
