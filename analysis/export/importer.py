"""A foreign launch script, program or configuration -> ``TrialConfig``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.export.effect import without_effect
from analysis.export.places import shares_of_memory
from analysis.export.read import read_openrlhf, read_trl, read_verl
from analysis.export.rules import Var, names_of, read_back
from analysis.export.targets import FRAMEWORKS, Target
from rlhf_core.config import TrialConfig, apply, flatten
from rlhf_core.errors import ConfigError

_LARGEST = 2**20

READERS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "openrlhf": read_openrlhf,
    "verl": read_verl,
    "trl": read_trl,
}


@dataclass(frozen=True)
class Imported:
    """What was read.

    Attributes:
        config: The configuration.
        version: The version whose names the file uses.
        unread: Our keys -> why their setting could not be taken over; they have their defaults.
        unknown: Settings without a counterpart here, with their values.
        open: Settings that the file takes from a variable, with its name.
        notes: Our keys -> how what was taken over works otherwise here.
    """

    config: TrialConfig
    version: str
    unread: dict[str, str]
    unknown: dict[str, Any]
    open: dict[str, str]
    notes: dict[str, str]

    def report(self) -> list[str]:
        """Everything that was not taken over, or works otherwise here, as lines."""
        lines = [f"note, {key}: {what}" for key, what in self.notes.items()]
        lines += [f"not taken over, {key}: {why}" for key, why in self.unread.items()]
        lines += [f"left open, {name}: {variable}" for name, variable in self.open.items()]
        lines += [f"no counterpart, {name}: {value}" for name, value in self.unknown.items()]
        return lines


def import_text(target: str, text: str, source: str, version: str | None = None) -> Imported:
    """Read a launch script, program or configuration.

    Settings that the text leaves out have the defaults of the framework, not ours: the result is what would
    run there, but for what ``Imported.report`` lists.

    Args:
        target: ``openrlhf``, ``verl`` or ``trl``.
        text: The file's content.
        source: Its name; its ending tells programs and YAML from scripts, and it starts every error line.
        version: Version of the framework; the newest one that knows all names by default.

    Raises:
        ConfigError: The text cannot be read, or breaks a rule of ``TrialConfig``.
    """
    chosen = FRAMEWORKS[target]
    given = READERS[target](text, source)
    release = chosen.version(version) if version is not None else _best_fitting(chosen, given)
    table = chosen.rules(release)
    known = names_of(table)
    ours, unread = read_back(table, {name: v for name, v in given.items() if name in known})
    vain = without_effect({**flatten(TrialConfig()), **ours})
    ours = {key: value for key, value in ours.items() if key not in vain}
    try:
        config = apply(TrialConfig(), ours, source)
    except ConfigError as error:
        raise ConfigError([f"{line} (as read from {target})" for line in error.problems]) from None
    return Imported(
        config=config,
        version=release,
        unread=unread,
        unknown={name: value for name, value in given.items() if name not in known},
        open={n: v.name for n, v in given.items() if n in known and isinstance(v, Var)},
        notes=shares_of_memory(config),
    )


def import_file(target: str, file: Path, version: str | None = None) -> Imported:
    """``import_text`` of a file."""
    try:
        if file.exists() and not file.is_file():
            raise ConfigError(f"{file}: is no ordinary file; name a script or configuration")
        if file.stat().st_size > _LARGEST:
            raise ConfigError(f"{file}: has more than {_LARGEST} bytes, which no launch script has")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{file}: cannot be read: {reason}") from None
    return import_text(target, text, str(file), version)


def _best_fitting(target: Target, given: dict[str, Any]) -> str:
    """The newest version with the fewest unknown names."""

    def unknown(version: str) -> int:
        return len(given.keys() - names_of(target.rules(version)))

    return min(target.versions, key=unknown)
