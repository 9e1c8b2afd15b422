"""JSON schemas of the files people write."""

from __future__ import annotations

import re
from typing import Any

from rlhf_core.config import TrialConfig, known_keys, preset_names
from rlhf_core.config.fields import NAME
from search_spaces import presets
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
        "description": "A space preset, or {dotted key: domain}.",
        "anyOf": [{"enum": list(presets.names())}, _space_schema()],
    }
    return {"$schema": DIALECT, "title": "rlhf-sweeps sweep", **schema}


def _file_schema() -> dict[str, Any]:
    endings = "|".join(map(re.escape, FILES))
    return {"type": "string", "pattern": f"({endings})$"}


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
        "properties": {"extends": {"enum": list(presets.names())}, **keys},
        "patternProperties": named,
        "additionalProperties": False,
    }
