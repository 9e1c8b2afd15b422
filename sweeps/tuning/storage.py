"""Where a study lies: an Optuna journal in the run directory, or any storage that Optuna has a URL for."""

from __future__ import annotations

import json
import os
import uuid
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning, StorageInternalError
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage

from rlhf_core.errors import ConfigError
from rlhf_core.store import LocalStore
from sweeps.config import SearchConfig
from sweeps.tuning.journal import Journal

JOURNAL = "study.log"
# Says which study of a storage is this directory's.
OWNED = "study.json"
_OWNER = "rlhf_sweep"
# A server that does not answer is given up; the drivers' own limits are minutes.
CONNECT_S = 10


Together = Callable[[bool], AbstractContextManager[Any]]
"""What is written to the storage in such a block may be written at its end; True: it outlives a loss of power."""


def open_study(
    directory: Path | None, name: str, search: SearchConfig, sampler: BaseSampler, url: str | None
) -> tuple[optuna.Study, Together]:
    """The study of a run directory, made where it is not there yet, and how several entries are written at once.

    Args:
        directory: The run directory; None: the study is kept in memory.
        name: Name of the sweep, and of the study.
        search: Its objectives.
        sampler: Proposes parameters.
        url: Optuna storage URL, or None: a journal in the directory.

    Raises:
        ConfigError: The storage cannot be reached, or its study of that name belongs to another sweep.
    """
    together: Together = nullcontext
    owner = None
    storage: BaseStorage
    if directory is None:
        storage = InMemoryStorage()
    elif url is None:
        journal = Journal(directory / JOURNAL)
        storage, together = JournalStorage(journal), journal.together
    else:
        storage, owner = _database(url), _owner(directory)
    study = _made_or_opened(storage, name, search, sampler, owner)
    if owner is not None:
        study.set_user_attr(_OWNER, owner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.set_metric_names(list(search.goals))
    return study, together


def check_storage(directory: Path, name: str, url: str | None) -> None:
    """Refuses a storage that no study can be kept in, before anything starts.

    Raises:
        ConfigError: As ``open_study``.
    """
    if url is not None:
        storage = _database(url)
        if name in optuna.get_all_study_names(storage):
            _refuse_foreign(optuna.load_study(study_name=name, storage=storage), _owned(directory))


def _made_or_opened(
    storage: BaseStorage,
    name: str,
    search: SearchConfig,
    sampler: BaseSampler,
    owner: str | None,
) -> optuna.Study:
    directions = list(search.goals.values())
    try:
        return optuna.create_study(
            storage=storage, study_name=name, sampler=sampler, directions=directions
        )
    except DuplicatedStudyError:
        study = optuna.load_study(study_name=name, storage=storage, sampler=sampler)
    if owner is not None:
        _refuse_foreign(study, owner)
    return study


def _refuse_foreign(study: optuna.Study, owner: str | None) -> None:
    known = study.user_attrs.get(_OWNER)
    # A sweep that was killed right after it made its study had no time to sign it.
    unsigned = known is None and not study.get_trials(deepcopy=False)
    if not unsigned and (owner is None or known != owner):
        raise ConfigError(
            f"storage.study: it already holds a study {study.study_name!r} that is not this sweep's; change the "
            f"sweep's name, or remove it with `optuna delete-study --study-name {study.study_name} --storage ...`"
        )


def _database(url: str) -> BaseStorage:
    # A study in a journal or in memory needs no database, and this takes a third of a second.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    expanded = os.path.expandvars(url)
    try:
        address = make_url(expanded)
        remote = address.get_backend_name() in ("postgresql", "mysql", "mariadb")
        arguments = {"connect_args": {"connect_timeout": CONNECT_S}} if remote else {}
        # A server may have been restarted since the last trial ended.
        storage = RDBStorage(expanded, engine_kwargs={"pool_pre_ping": True, **arguments})
        optuna.get_all_study_names(storage)
    except (SQLAlchemyError, StorageInternalError, ImportError, RuntimeError, OSError) as error:
        raise ConfigError(
            f"storage.study: {_hidden(expanded)} cannot be used: {_cause(error)}"
        ) from None
    return storage


def _hidden(url: str) -> str:
    """The URL without its password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return "this URL"


def _cause(error: BaseException) -> str:
    """The first line of what went wrong, as the database's driver says it."""
    inner = getattr(error, "orig", None) or error.__cause__ or error
    inner = getattr(inner, "orig", None) or inner
    if isinstance(inner, ModuleNotFoundError):
        package = _PACKAGES.get(str(inner.name), inner.name)
        return f"the driver {inner.name} is not installed; pip install {package}"
    return str(inner).strip().splitlines()[0] if str(inner).strip() else repr(inner)


_PACKAGES = {
    "psycopg": "'psycopg[binary]'",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
}


def _owner(directory: Path) -> str:
    """The id by which a storage knows this directory."""
    known = _owned(directory)
    if known is None:
        known = uuid.uuid4().hex
        LocalStore(directory).put(OWNED, json.dumps({"owner": known}).encode())
    return known


def _owned(directory: Path) -> str | None:
    path = directory / OWNED
    return str(json.loads(path.read_text())["owner"]) if path.exists() else None
