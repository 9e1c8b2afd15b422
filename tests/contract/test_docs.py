from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import yaml

from sweeps.cli import build_parser
from sweeps.load import load_sweep

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_reference_is_what_the_code_says() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs/reference.md").read_text(encoding="utf-8") == module.render(), (
        "run python docs/make_reference.py"
    )


def test_every_command_of_the_readme_parses() -> None:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("rlhf-sweep ")]
    assert len(commands) >= 10
    for line in commands:
        words = shlex.split(line.split(" > ")[0], comments=True)
        assert build_parser().parse_args(words[1:]).run


def test_the_sweep_file_of_the_readme_loads() -> None:
    text = next(block for block in blocks("yaml") if "name: kl-and-clip" in block)
    loaded = load_sweep(yaml.safe_load(text))
    assert loaded.config.scheduler.kind == "asha"
    assert set(loaded.space) == {"ppo.kl.coef", "ppo.clip_range_high", "sync.interval"}


def test_links_and_pictures_of_the_docs_exist() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_make_demo_and_make_test_stand_in_the_first_screen() -> None:
    first_screen = "\n".join(README.splitlines()[:30])
    assert "make demo" in first_screen
    assert "make test" in first_screen
    assert ".png" in first_screen
