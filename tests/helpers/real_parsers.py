"""The peers' own parsers and checks, taken out of their released wheels without what they import."""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from peers import peer_python, read_wheel, wheel

OVERRIDES = """
import json, sys
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
given = json.load(sys.stdin)
config = OmegaConf.load(sys.argv[1])
OmegaConf.set_struct(config, True)
parsed = OverridesParser.create().parse_overrides(given)
for override in parsed:
    OmegaConf.update(config, override.key_or_group, override.value(), force_add=False)
print(json.dumps({o.key_or_group: OmegaConf.to_container(config, resolve=False) and
                  OmegaConf.select(config, o.key_or_group) if not isinstance(o.value(), list)
                  else list(OmegaConf.select(config, o.key_or_group)) for o in parsed}))
"""


def script_words(text: str, variables: dict[str, str]) -> list[str]:
    """What a launch script hands to Python, as bash expands it."""
    with tempfile.TemporaryDirectory() as folder:
        stub = Path(folder) / "python3"
        stub.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n')
        stub.chmod(0o755)
        script = Path(folder) / "launch.sh"
        script.write_text(text)
        done = subprocess.run(
            ["bash", str(script)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **variables, "PATH": f"{folder}:{os.environ['PATH']}"},
        )
    return done.stdout.split("\0")[:-1]


class OpenRLHF:
    """Parser and validation of ``openrlhf.cli.train_ppo_ray`` of one version."""

    def __init__(self, version: str) -> None:
        archive = wheel("openrlhf", version)
        tree = ast.parse(read_wheel(archive, "openrlhf/cli/train_ppo_ray.py"))
        (main,) = [
            node
            for node in tree.body
            if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        ]
        at = next(i for i, node in enumerate(main.body) if "parse_args()" in ast.unparse(node))
        functions = [
            node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name != "train"
        ]
        self.names: dict[str, Any] = {"argparse": argparse, "datetime": datetime}
        self._run([*functions, *main.body[:at]])
        self.parser: argparse.ArgumentParser = self.names["parser"]
        self.checks = [
            node
            for node in main.body[at + 1 :]
            if not isinstance(node, ast.ImportFrom) and ast.unparse(node) != "train(args)"
        ]
        if any(name.endswith("openrlhf/utils/config.py") for name in archive.namelist()):
            exec(read_wheel(archive, "openrlhf/utils/config.py"), self.names)

    def _run(self, body: list[ast.stmt]) -> None:
        exec(compile(ast.Module(body, []), "train_ppo_ray", "exec"), self.names)

    def parse(self, words: list[str]) -> dict[str, Any]:
        """The parsed flags; their own checks ran over them. Raises SystemExit or AssertionError."""
        parsed = self.parser.parse_args(words)
        found = dict(vars(parsed))
        self.names["args"] = parsed
        self._run(self.checks)
        return found

    def default(self, name: str) -> Any:
        return self.parser.get_default(name)


def verl_reference() -> dict[str, Any]:
    """verl's resolved default configuration, as it was released."""
    text = read_wheel(wheel("verl", "0.9.1"), "verl/trainer/config/_generated_ppo_trainer.yaml")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def verl_parse(words: list[str]) -> dict[str, Any]:
    """Overrides, parsed by hydra and put into verl's configuration; an unknown key fails."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(verl_reference(), file)
        file.flush()
        done = subprocess.run(
            [peer_python("hydra"), "-c", OVERRIDES, file.name],
            input=json.dumps(words),
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found
