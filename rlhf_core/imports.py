"""What a configuration names by its import path ``package.module:name``."""

from __future__ import annotations

import importlib
from typing import Any

from rlhf_core.errors import ConfigError, nearest, shown


def import_named(path: str, key: str, kind: str) -> Any:
    """The object behind ``package.module:name``; whether it is of the right kind is the caller's question.

    Args:
        path: Import path.
        key: Option that holds it; starts the line of the error.
        kind: What is asked for, ``function`` or ``Class``.

    Raises:
        ConfigError: If the path is malformed, or the module or the name does not exist.
    """
    module_name, _, name = path.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        raise ConfigError(f"{key} must be 'package.module:{kind}', but is {shown(path)}")
    try:
        module = importlib.import_module(module_name)
    # Importing runs the module, and whatever it raises.
    except (Exception, SystemExit) as error:
        what = str(error) if isinstance(error, ImportError) else repr(error)
        raise ConfigError(f"{key}: {path!r} cannot be imported: {what}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        near = nearest(name, vars(module))
        raise ConfigError(f"{key}: module {module_name!r} has no {kind} {name!r}{near}") from None
