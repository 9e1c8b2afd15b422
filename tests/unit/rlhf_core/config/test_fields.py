"""Every option of a trial is described and bounded; the JSON schema says the same as the models."""

from __future__ import annotations

import typing
from typing import Any

import jsonschema
import pytest

from rlhf_core.config import TrialConfig, flatten, known_keys, preset_names, resolve_trial
from rlhf_core.config.fields import NAME, Group, dotted_fields, validate
from rlhf_core.errors import ConfigError
from sweeps.config import SweepConfig


def _kinds(annotation: Any) -> set[Any]:
    return {annotation, *typing.get_args(annotation)}


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_resolves(name: str) -> None:
    assert isinstance(resolve_trial(name, name), TrialConfig)


def test_there_is_a_preset() -> None:
    assert "tiny" in preset_names()


@pytest.mark.parametrize(("key", "field"), list(dotted_fields(TrialConfig)))
def test_an_option_is_described_and_a_number_is_bounded(key: str, field: Any) -> None:
    assert field.description
    assert len(field.description) > 4
    assert field.description[-1] == "."
    kinds = _kinds(field.annotation)
    if kinds & {int, float} and bool not in kinds:
        bounds = {type(m).__name__ for m in field.metadata}
        assert bounds & {"Ge", "Gt"}, f"{key} has no lower bound"
        assert bounds & {"Le", "Lt"}, f"{key} has no upper bound"


def test_groups_are_described() -> None:
    def walk(kind: type[Group], where: str) -> None:
        for name, field in kind.model_fields.items():
            assert field.description, f"{where}{name}"
            if isinstance(field.annotation, type) and issubclass(field.annotation, Group):
                walk(field.annotation, f"{where}{name}.")

    walk(TrialConfig, "")


def test_flatten_knows_every_key() -> None:
    unnamed = [key for key in known_keys() if f".{NAME}." not in key]
    assert list(flatten(TrialConfig())) == unnamed
    assert len(set(known_keys())) == len(known_keys())
    one = resolve_trial({"reward": {"extra": {"brevity": {"function": "a:b"}}}}, "one")
    assert list(flatten(one)) == [key.replace(NAME, "brevity") for key in known_keys()]
    assert flatten(one)["reward.extra.brevity.function"] == "a:b"


def test_the_json_schema_is_valid_and_judges_like_the_models() -> None:
    schema = TrialConfig.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(TrialConfig().model_dump(mode="json"))
    extra = {"brevity": {"function": "a:b", "weight": 0.2}, "safety": {"model": "x"}}
    validator.validate({"reward": {"extra": extra}})
    wrong_extra: list[dict[str, Any]] = [
        {"Brevity": {"function": "a:b"}},
        {"brevity": {"wieght": 1}},
        {"brevity": {"weight": "much"}},
        {"brevity": 0.2},
    ]
    for wrong in (
        {"nope": 1},
        {"ppo": {"lam": 3}},
        {"resources": {"layout": "spread"}},
        *({"reward": {"extra": part}} for part in wrong_extra),
    ):
        assert not validator.is_valid(wrong)
    optim = schema["$defs"]["SyncConfig"]["properties"]["interval"]
    assert optim["unit"] == "iterations"


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        TrialConfig().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"ppo": 3}, "ppo must be a mapping, but is 3"),
        ({"data": {"task": 3}}, "data.task must be text, but is 3"),
        ({"resources": {"colocate": "learner"}}, "must be a list, but is 'learner'"),
        ({"resources": {"colocate": [3]}}, "resources.colocate.0 must be a mapping, but is 3"),
        ({"resources": {"labels": ["zone"]}}, "resources.labels must be a mapping"),
        ({"resources": {"labels": {"zone": 3}}}, "zone must be text or a list, but is 3"),
        ({"resources": {"labels": {"zone": ["a", 3]}}}, "zone.1 must be text, but is 3"),
        ({"reward": {"extra": {"a": 3}}}, "reward.extra.a must be a mapping, but is 3"),
    ],
)
def test_a_value_of_another_form_is_one_line_in_the_words_of_a_file(
    values: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_trial(values, "mine")
    (said,) = caught.value.problems
    assert said.startswith("mine: ")
    assert line in said


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(SweepConfig, {"cluster": {"node_types": [{"cpus": 1}]}}, "mine")
    assert caught.value.problems == ("mine: cluster.node_types.0.memory_gb is missing; name it",)
