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
    """Copy the sweep's Optuna study, else one made of its trials; the number of its trials.

    Args:
        sweep: A loaded sweep.
        out: A storage URL such as ``sqlite:///FILE``, or the path of a journal file.

    Raises:
        ConfigError: The storage cannot be used, or holds a study of that name.
    """
    import optuna
    from optuna.exceptions import DuplicatedStudyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name, source = _study(sweep)
    try:
        target = _storage(out)
        optuna.copy_study(from_study_name=name, from_storage=source, to_storage=target)
        return len(optuna.load_study(study_name=name, storage=target).trials)
    except DuplicatedStudyError:
        raise ConfigError(
            f"--out: {out} holds a study {name!r} already; name another storage"
        ) from None
    except (ImportError, ValueError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--out: {out} cannot be used as a storage: {reason}") from None


def has_study(sweep: Sweep) -> bool:
    """Whether the sweep left an Optuna study in its directory."""
    return (sweep.path / "study.log").is_file()


def _study(sweep: Sweep) -> tuple[str, Any]:
    """Name and storage of the sweep's own study, else of one in memory."""
    import optuna

    if not has_study(sweep):
        from analysis.export.study import study_of

        made = study_of(sweep)
        return made.study_name, made._storage
    source = _storage(str(sweep.path / "study.log"))
    names = optuna.get_all_study_names(source)
    if len(names) != 1:
        raise ConfigError(f"{sweep.path / 'study.log'}: holds {len(names)} studies, not one")
    return names[0], source


def _storage(place: str) -> BaseStorage | Any:
    from optuna.storages import JournalStorage, get_storage
    from optuna.storages.journal import JournalFileBackend

    return get_storage(place) if "://" in place else JournalStorage(JournalFileBackend(place))
