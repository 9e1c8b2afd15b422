from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.errors import ConfigError, shown
from rlhf_core.models.sources import problem_of_model
from rlhf_core.paths import user_path
from rlhf_core.tasks.folder import TaskFolder

STRANGE = ["~nobody-of-that-name/x", "a\0b", "x" * 300, "/".join(["y" * 200] * 30), "\ud800"]


@pytest.mark.parametrize("written", STRANGE)
def test_what_no_file_can_be_called_is_one_line(written: str) -> None:
    with pytest.raises(ConfigError, match=r"^data\.prompts: ") as caught:
        user_path(written, "data.prompts")
    assert len(str(caught.value)) < 200
    assert problem_of_model(written, "model.policy")
    with pytest.raises(ConfigError):
        TaskFolder.load(written)


def test_links_in_a_circle_are_named(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(ConfigError, match="symbolic links"):
        user_path(circle)


def test_a_home_folder_is_written_in_full_and_what_is_not_there_yet_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/new") == tmp_path / "new"
    assert user_path("org/model") == Path("org/model")


def test_a_value_too_large_to_read_is_shown_by_its_beginning() -> None:
    assert shown([1, "a"]) == "[1, 'a']"
    assert len(shown("x" * 1000)) == 80
    assert shown(10**5000) == "a int too large to show"
