"""A GGUF file is a model like any other once it is converted, and is converted once."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import write_gguf
from tiny_models import Zoo
from tiny_rollouts import CPU, trial_config

from rlhf_core.assets import make_ready, problems, resolve
from rlhf_core.errors import ConfigError
from rlhf_core.memory import Shapes
from rlhf_core.models import gguf
from rlhf_core.models.gguf import cached_gguf, ensure_gguf, problem_of_gguf
from rlhf_core.models.load import load_policy, load_tokenizer
from rlhf_core.models.sources import problem_of_model

KEY = "model.policy"
needs_extra = pytest.mark.skipif(
    any(find_spec(name) is None for name in gguf.EXTRA), reason="needs the packages of extra gguf"
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_SWEEPS_CACHE", str(tmp_path / "cache"))


@needs_extra
def test_weights_and_tokens_are_those_of_the_file(
    zoo: Zoo, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.gguf"
    plain = write_gguf(zoo.policies["Qwen2"], file)
    config = trial_config(zoo, model__policy=str(file))
    assert problems(config) == []
    assert Shapes.of(config) is None
    capfd.readouterr()
    stages: list[str] = []
    make_ready(config, lambda stage, done, total: stages.append(stage))
    assert capfd.readouterr() == ("", "")
    assert stages == ["GGUF file"]
    folder = resolve(config).policy
    assert Path(folder).parent == tmp_path / "cache" / "models"
    assert Shapes.of(config) is not None
    model = load_policy(folder, "float32", CPU)
    state = model.state_dict()
    assert state.keys() == plain.keys()
    for name, weights in plain.items():
        assert np.array_equal(state[name].numpy(), weights), name
    ours, theirs = load_tokenizer(folder), load_tokenizer(zoo.policies["Qwen2"])
    for text in ("the film is good", "a bad end", "thin"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.eos_token_id == theirs.eos_token_id


@needs_extra
def test_it_is_converted_once_whoever_asks_and_wherever_it_lies(zoo: Zoo, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(zoo.policies["Qwen2"], file)
    calls: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        found = set(
            pool.map(
                lambda _: ensure_gguf(str(file), KEY, lambda stage, *_: calls.append(stage)),
                range(3),
            )
        )
    assert len(found) == len(calls) == 1
    (tmp_path / "elsewhere").mkdir()
    moved = file.rename(tmp_path / "elsewhere" / "tiny.gguf")
    assert ensure_gguf(str(moved), KEY) in found
    other = moved.with_name("other.gguf")
    other.write_bytes(moved.read_bytes()[:-4] + b"\0\0\0\0")
    assert cached_gguf(str(other)) is None


@needs_extra
def test_an_architecture_that_is_not_read_is_named(zoo: Zoo, tmp_path: Path) -> None:
    file = tmp_path / "odd.gguf"
    write_gguf(zoo.policies["Qwen2"], file, "oddity")
    assert problem_of_gguf(str(file), KEY) == (
        f"model.policy: {file} holds architecture 'oddity', which transformers does not read from GGUF; name "
        "a Hugging Face folder of it instead"
    )


def _header(architecture: str = "llama", version: int = 3) -> bytes:
    name = b"general.architecture"
    text = architecture.encode()
    return (
        struct.pack("<4sIQQ", b"GGUF", version, 0, 1)
        + struct.pack("<Q", len(name)) + name + struct.pack("<IQ", 8, len(text)) + text
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is no GGUF file"),
        (b"PK\3\4 and more", "is no GGUF file"),
        (_header(version=1), "has GGUF version 1, but 2 or 3 is read"),
        (_header()[:30], "is a damaged GGUF file"),
        (_header()[:24] + b"\xff" * 40, "is a damaged GGUF file"),
    ],
)
def test_a_file_that_is_none_is_refused_without_reading_it(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(content)
    line = problem_of_model(str(file), KEY)
    assert line is not None
    assert line.startswith(f"model.policy: {file} {problem}")


def test_what_is_missing_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.gguf"
    assert problem_of_model(str(file), KEY) == (
        f"model.policy: no file {str(file)!r}; name a GGUF file, a folder or a hub id"
    )
    file.write_bytes(_header())
    monkeypatch.setattr(gguf, "EXTRA", ("gguf", "no_such_package"))
    line = problem_of_model(str(file), KEY)
    assert line is not None
    assert line.endswith(
        "no_such_package are not installed; run pip install gguf no_such_package"
    ) or (line.endswith("no_such_package is not installed; run pip install gguf no_such_package"))
    with pytest.raises(ConfigError, match="is read with gguf and no_such_package"):
        ensure_gguf(str(file), KEY)


@pytest.mark.parametrize("name", ["no-such-package", ""])
def test_a_package_that_is_not_installed_is_named(name: str) -> None:
    line = problem_of_model(f"package:{name}", "model.reference")
    assert line is not None
    assert line.startswith(f"model.reference: 'package:{name}' needs the package {name!r}")


def test_a_package_without_a_model_is_named() -> None:
    assert problem_of_model("package:pytest", KEY) == (
        "model.policy: the package 'pytest' must hold one GGUF file, but holds 0; name the file"
    )


def test_a_package_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "model.gguf").write_bytes(_header())
    info = tmp_path / "held_model-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: held-model\nVersion: 1.0\n")
    (info / "RECORD").write_text("held/model.gguf,,\nheld/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert gguf.gguf_file("package:held-model", KEY) == tmp_path / "held" / "model.gguf"


def test_a_reward_is_no_gguf_file(zoo: Zoo) -> None:
    config: Any = trial_config(zoo, **{"reward.model": "scores.gguf"})
    (line,) = problems(config)
    assert line.startswith("reward.model: a GGUF file holds a language model")


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, place = tmp_path / "x.gguf", tmp_path / "file"
    file.write_bytes(_header())
    place.touch()
    monkeypatch.setenv("RLHF_SWEEPS_CACHE", str(place))
    monkeypatch.setattr(gguf, "problem_of_gguf", lambda *_: None)
    with pytest.raises(ConfigError, match="set RLHF_SWEEPS_CACHE to another folder"):
        ensure_gguf(str(file), KEY)
