"""``--set KEY=VALUE`` on the command line; values read as YAML."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from rlhf_core.config.io import parse_yaml
from rlhf_core.errors import ConfigError


def add_set_option(parser: argparse.ArgumentParser, example: str) -> None:
    """Adds ``--set`` to a subcommand."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"override one option, e.g. --set {example}; may be repeated",
    )


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """``["a.b=1e-5"]`` -> ``{"a.b": 1e-05}``."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set: an override reads KEY=VALUE, but is {pair!r}")
        values[key.strip()] = parse_yaml(text, f"--set {key}")
    return values
