"""Checks of an installation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlhf_core.tasks.builtin import cache_folder
from sweeps.record import versions

PACKAGES = ("sweeps", "rlhf_core", "search_spaces", "analysis")
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Finding:
    """One check: whether it holds, what was seen, and what to do if not."""

    ok: bool
    what: str
    remedy: str = ""


def examine() -> list[Finding]:
    """All checks, cheap ones first."""
    return [
        *_installed(),
        *(_name(package) for package in PACKAGES),
        _machine(),
        _devices(),
        _cache(),
        _ray(),
    ]


def _installed() -> Iterator[Finding]:
    found = versions()
    yield Finding(True, ", ".join(f"{name} {version}" for name, version in found.items()))
    for name in ("ray", "torch", "transformers", "optuna"):
        if name not in found:
            yield Finding(False, f"{name} is not installed", f"pip install {name}")


def _name(package: str) -> Finding:
    """Another distribution may provide the same top-level name and win on the path."""
    spec = importlib.util.find_spec(package)
    origin = Path(spec.origin).resolve() if spec and spec.origin else None
    if origin is not None and origin.parent.parent == ROOT:
        others = [
            name
            for name in importlib.metadata.packages_distributions().get(package, [])
            if name != "rlhf-sweeps"
        ]
        if not others:
            return Finding(True, f"`import {package}` finds {origin.parent}")
        return Finding(
            False,
            f"{', '.join(others)} installs a package named {package!r} as well",
            f"pip uninstall {' '.join(others)}",
        )
    return Finding(
        False,
        f"`import {package}` finds {origin}, not {ROOT / package}",
        "uninstall the distribution that provides it (for 'sweeps' often wandb[sweeps])",
    )


def _machine() -> Finding:
    memory = psutil.virtual_memory().total / 1e9
    return Finding(True, f"{os.cpu_count()} cores, {memory:.0f} GB memory")


def _devices() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding(
            True, "no CUDA device: roles compute on the CPU; use cluster.rehearse for logical GPUs"
        )
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding(True, f"CUDA devices: {', '.join(names)}")


def _cache() -> Finding:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    return Finding(
        writable, f"cache folder {folder}", "set RLHF_SWEEPS_CACHE to a folder you may write"
    )


def _ray() -> Finding:
    from sweeps.config import ClusterConfig
    from sweeps.tuning import cluster

    try:
        with cluster.running(ClusterConfig(local=True)) as nodes:
            shapes = [f"{n.cpus:g} CPUs, {n.gpus:g} GPUs, {n.memory_gb:.0f} GB" for n in nodes]
    except Exception as error:  # noqa: BLE001 - whatever keeps Ray from starting is the finding
        return Finding(False, f"Ray does not start: {error}", "see the log folder it names")
    return Finding(True, f"Ray starts: {'; '.join(shapes)}")
