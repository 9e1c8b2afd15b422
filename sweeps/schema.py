"""JSON schemas of the files people write."""

from __future__ import annotations

import re
from typing import Any

from rlhf_core.config import TrialConfig, known_keys, preset_names
from rlhf_core.config.fields import NAME
from search_spaces import presets
from search_spaces.rules import KINDS
from sweeps.config import SweepConfig
from sweeps.load import FILES

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def trial_schema() -> dict[str, Any]:
    """Schema of a trial's file."""
    schema = TrialConfig.model_json_schema()
    schema["properties"]["extends"] = {"enum": list(preset_names())}
    return {"$schema": DIALECT, "title": "rlhf-sweeps trial", **schema}


def sweep_schema() -> dict[str, Any]:
    """Schema of sweep.yaml."""
    schema = SweepConfig.model_json_schema()
    named = {"anyOf": [{"enum": list(preset_names())}, _file_schema()]}
    schema["$defs"]["TrialConfig"]["properties"]["extends"] = named
    schema["properties"]["base"] = {
        "description": "A trial preset, a file of a TrialConfig, or what differs from one.",
        "anyOf": [*named["anyOf"], {"$ref": "#/$defs/TrialConfig"}],
    }
    schema["properties"]["space"] = {
        "description": "A space preset, 'module:NAME' or 'FILE.py:NAME', or {dotted key: domain}.",
        "anyOf": [_space_name(), _space_schema()],
    }
    return {"$schema": DIALECT, "title": "rlhf-sweeps sweep", **schema}


def _file_schema() -> dict[str, Any]:
    endings = "|".join(map(re.escape, FILES))
    return {"type": "string", "pattern": f"({endings})$"}


def _space_name() -> dict[str, Any]:
    python = {"type": "string", "pattern": ":[A-Za-z_][A-Za-z0-9_]*$"}
    return {"anyOf": [{"enum": list(presets.names())}, python]}


def _rule_schema() -> dict[str, Any]:
    """One of the kinds of rules with its terms, or the name of one without terms."""
    terms = {"type": "array", "items": {"type": ["string", "number"]}}
    bare = [name for name, kind in KINDS.items() if not kind.most]
    return {
        "anyOf": [
            {"enum": bare},
            {
                "type": "object",
                "properties": {
                    **{
                        name: {**terms, "minItems": kind.least, "maxItems": kind.most}
                        for name, kind in KINDS.items()
                        if kind.most
                    },
                    "times": {"type": "number", "exclusiveMinimum": 0},
                },
                "additionalProperties": False,
                "oneOf": [{"required": [name]} for name, kind in KINDS.items() if kind.most],
            },
        ]
    }


def _words() -> dict[str, Any]:
    """What a space holds beside its parameters."""
    name = _space_name()
    keys = {"type": "array", "items": {"type": "string"}}
    return {
        "extends": {"anyOf": [name, {"type": "array", "items": name}]},
        "model_size": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]},
        "drop": {"anyOf": [{"type": "string"}, keys]},
        "narrow": {
            "type": "object",
            "additionalProperties": {"type": "array", "minItems": 2, "maxItems": 2},
        },
        "freeze": {"type": "object"},
        "rules": {"type": "array", "items": _rule_schema()},
    }


def _space_schema() -> dict[str, Any]:
    pair = {"type": "array", "minItems": 2, "maxItems": 2}
    domain = {
        "type": "object",
        "properties": {
            "float": pair,
            "int": pair,
            "choice": {"type": "array", "minItems": 1},
            "constant": {},
            "log": {"type": "boolean"},
            "logit": {"type": "boolean"},
            "pow2": {"type": "boolean"},
            "step": {"type": "number"},
            "centre": {},
            "when": {"type": "object", "minProperties": 1, "maxProperties": 1},
        },
        "additionalProperties": False,
        "oneOf": [{"required": [kind]} for kind in ("float", "int", "choice", "constant")],
    }
    keys = {key: domain for key in known_keys() if NAME not in key.split(".")}
    # The keys below a name of the user's own.
    named = {
        "^" + re.escape(key).replace(NAME, "[a-z][a-z0-9_]*") + "$": domain
        for key in known_keys()
        if key not in keys
    }
    return {
        "type": "object",
        "properties": {**_words(), **keys},
        "patternProperties": named,
        "additionalProperties": False,
    }
