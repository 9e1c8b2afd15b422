"""``TrialConfig`` -> the text that another framework starts from."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.export import render
from analysis.export.rules import Applied
from analysis.export.targets import PLAIN, framework
from analysis.export.trl_script import script
from rlhf_core.config import TrialConfig
from rlhf_core.errors import ConfigError

TITLES = {"openrlhf": "OpenRLHF", "verl": "verl", "trl": "TRL", "deepspeed": "DeepSpeed"}


@dataclass(frozen=True)
class Export:
    """An export.

    Attributes:
        text: The file.
        report: What became of the options, as lines; the file states them too where it can hold comments.
        applied: The settings; None for our own formats, which lose nothing.
    """

    text: str
    report: tuple[str, ...]
    applied: Applied | None = None


def export_config(
    config: TrialConfig,
    target: str,
    *,
    version: str | None = None,
    origin: str = "a configuration",
    role: str = "policy",
) -> Export:
    """Export a configuration.

    Args:
        config: What is exported.
        target: ``yaml``, ``json``, ``env``, ``openrlhf``, ``verl``, ``trl`` or ``deepspeed``.
        version: Version of the framework; the newest known one by default.
        origin: What the configuration came from, for the file's first line.
        role: Whose optimiser a DeepSpeed file is about, ``policy`` or ``critic``.

    Raises:
        ConfigError: An unknown version, or a value that would make another algorithm or no run there.
    """
    if role != "policy" and target != "deepspeed":
        raise ConfigError(f"--role: belongs to deepspeed, but the target is {target}; leave it out")
    # It stands in a comment, and a second line of it would be a command.
    origin = " ".join(origin.splitlines())
    if target in PLAIN:
        if version is not None:
            raise ConfigError(
                f"--version: {target} has none, but {version!r} was given; leave it out"
            )
        return Export(render.plain(target, config, origin), ())
    chosen = framework(target, role)
    release = chosen.version(version)
    applied = chosen.apply(config, release)
    lines = render.report(applied, config)
    title = f"PPO with {TITLES[target]} {release}, written by rlhf-sweep from {origin}."
    return Export(_text(target, applied, [title, *lines]), tuple(lines), applied)


def _text(target: str, applied: Applied, lines: list[str]) -> str:
    header = render.comment(lines)
    if target == "openrlhf":
        command = "python3 -m openrlhf.cli.train_ppo_ray"
        return render.shell(command, render.flags(applied), applied, header)
    if target == "verl":
        command = "python3 -m verl.trainer.main_ppo"
        return render.shell(command, render.overrides(applied), applied, header)
    if target == "trl":
        return script(applied, header)
    return render.nested_json(applied, lines)
