"""The targets of an export, their versions and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from analysis.export import deepspeed, openrlhf, trl, verl
from analysis.export.rules import Applied, Table, apply_table
from rlhf_core.config import TrialConfig
from rlhf_core.errors import ConfigError

PLAIN = ("yaml", "json", "env")
TRIALS = ("optuna", "csv", "parquet")
# Options that another one holds already, whatever the target.
RESOLVED = {"optim.critic_lr_ratio": "optim.critic.lr holds it"}


@dataclass(frozen=True)
class Target:
    """A framework: its name, the versions known (newest first), and the rules for one of them.

    Attributes:
        reasons: Start of our key -> why it is dropped, for keys that no rule names; the longest start wins.
        nowhere: The same for all others.
    """

    name: str
    versions: tuple[str, ...]
    table: Callable[[str], Table]
    nowhere: str
    reasons: Mapping[str, str]

    def version(self, asked: str | None) -> str:
        """The newest version, or the one asked for if it is known."""
        if asked is None:
            return self.versions[0]
        if asked not in self.versions:
            near = get_close_matches(asked, self.versions, n=1)
            raise ConfigError(
                f"--version: {self.name} {asked!r} is not known; there are {', '.join(self.versions)}"
                + "".join(f"; did you mean {version!r}?" for version in near)
            )
        return asked

    def apply(self, config: TrialConfig, version: str) -> Applied:
        """Their settings for ``config``. Raises ConfigError for what would be another run there."""
        applied = apply_table(self.rules(version), config, self.reason)
        if applied.refused:
            raise ConfigError([f"{self.name} {version}: {line}" for line in applied.refused])
        return applied

    def rules(self, version: str) -> Table:
        """The table of a version, made once."""
        return _made(self.table, version)

    def reason(self, key: str) -> str:
        """Why a key without a rule is dropped."""
        if key in RESOLVED:
            return RESOLVED[key]
        starts = [start for start in self.reasons if key.startswith(start)]
        return self.reasons[max(starts, key=len)] if starts else self.nowhere


@cache
def _made(table: Callable[[str], Table], version: str) -> Table:
    return table(version)


def _deepspeed(role: str) -> Target:
    tables = {"policy": deepspeed.policy_table, "critic": deepspeed.critic_table}
    return Target("deepspeed", deepspeed.VERSIONS, tables[role], deepspeed.NOWHERE, {})


FRAMEWORKS = {
    "openrlhf": Target(
        "openrlhf", openrlhf.VERSIONS, openrlhf.table, openrlhf.NOWHERE, openrlhf.REASONS
    ),
    "verl": Target("verl", verl.VERSIONS, verl.table, verl.NOWHERE, verl.REASONS),
    "trl": Target("trl", trl.VERSIONS, trl.table, trl.NOWHERE, trl.REASONS),
}


def framework(name: str, role: str = "policy") -> Target:
    """The target of that name; ``role`` chooses the optimiser for DeepSpeed."""
    return _deepspeed(role) if name == "deepspeed" else FRAMEWORKS[name]
