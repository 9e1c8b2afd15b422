"""The trials of a run directory, for other programs: a table, or an Optuna study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.load import Sweep
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


def write_table(sweep: Sweep, kind: str, out: Path) -> int:
    """Write ``sweep.trials``, one row a trial; the number of rows.

    Args:
        sweep: A loaded sweep.
        kind: ``csv`` or ``parquet``.
        out: The file.
    """
    table = sweep.trials.reset_index()
    if kind == "csv":
        table.to_csv(out, index=False)
    else:
        table.to_parquet(out, index=False)
    return len(table)


def copy_study(sweep: Sweep, out: str) -> int:
    """Copy the sweep's Optuna study; the number of its trials.

    Args:
        sweep: A loaded sweep.
        out: A storage URL such as ``sqlite:///FILE``, or the path of a journal file.

    Raises:
        ConfigError: The sweep has no study, or the storage cannot be used or holds one of that name.
    """
    import optuna
    from optuna.exceptions import DuplicatedStudyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = sweep.path / "study.log"
    if not journal.is_file():
        raise ConfigError(f"{sweep.path}: has no study.log, the study that is exported")
    source = _storage(str(journal))
    names = optuna.get_all_study_names(source)
    if len(names) != 1:
        raise ConfigError(f"{journal}: holds {len(names)} studies, but one is exported")
    try:
        target = _storage(out)
        optuna.copy_study(from_study_name=names[0], from_storage=source, to_storage=target)
        return len(optuna.load_study(study_name=names[0], storage=target).trials)
    except DuplicatedStudyError:
        raise ConfigError(
            f"--out: {out} holds a study {names[0]!r} already; name another storage"
        ) from None
    except (ImportError, ValueError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--out: {out} cannot be used as a storage: {reason}") from None


def _storage(place: str) -> BaseStorage | Any:
    from optuna.storages import JournalStorage, get_storage
    from optuna.storages.journal import JournalFileBackend

    return get_storage(place) if "://" in place else JournalStorage(JournalFileBackend(place))
