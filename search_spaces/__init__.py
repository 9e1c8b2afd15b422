"""What may vary in a sweep: domains, conditions, rules and named spaces. Plain data, no sampling."""

from search_spaces import presets
from search_spaces.codec import SCHEMA_VERSION, from_dict, parse, to_dict
from search_spaces.conditions import When
from search_spaces.domains import Choice, Constant, Domain, Float, Int, Logit, Pow2, Scalar
from search_spaces.errors import SpaceError
from search_spaces.rules import Rule
from search_spaces.space import Parameter, Space

__all__ = [
    "SCHEMA_VERSION",
    "Choice",
    "Constant",
    "Domain",
    "Float",
    "Int",
    "Logit",
    "Parameter",
    "Pow2",
    "Rule",
    "Scalar",
    "Space",
    "SpaceError",
    "When",
    "from_dict",
    "parse",
    "presets",
    "to_dict",
]
