"""Configuration of one trial. Imports neither torch nor ray."""

from rlhf_core.config.io import dump_yaml, load_trial, preset_names, resolve_trial
from rlhf_core.config.overrides import apply, flatten, known_keys, nest
from rlhf_core.config.resources import ROLES
from rlhf_core.config.trial import TrialConfig

__all__ = [
    "ROLES",
    "TrialConfig",
    "apply",
    "dump_yaml",
    "flatten",
    "known_keys",
    "load_trial",
    "nest",
    "preset_names",
    "resolve_trial",
]
