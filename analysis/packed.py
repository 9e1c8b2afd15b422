"""A sweep as a few Parquet files: what ``Sweep.to_parquet`` wrote, read back equal.

Smaller than a run directory by ten times and more, and enough for every frame, statistic and plot.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analysis.files import SCHEMA_VERSION, read_document, replacing
from analysis.sweep import FRAMES, Sweep
from rlhf_core.errors import ConfigError

DOCUMENT = "packed.json"


def is_packed(path: Path) -> bool:
    """Whether ``path`` is a folder that ``Sweep.to_parquet`` wrote."""
    return (path / DOCUMENT).is_file()


def write_document(sweep: Sweep, folder: Path) -> Path:
    """``packed.json``: what of a sweep is no frame."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "info": sweep.info,
        "space": sweep.space,
        "warnings": list(sweep.warnings),
    }
    target = folder / DOCUMENT
    with replacing(target) as draft:
        draft.write_text(json.dumps(document, ensure_ascii=False, indent=1), "utf-8")
    return target


def from_packed(path: Path) -> Sweep:
    """The sweep in a folder of Parquet files.

    Raises:
        ConfigError: A file is missing, damaged or of a newer schema.
    """
    import pandas as pd
    import pyarrow as pa

    document = read_document(path / DOCUMENT, DOCUMENT)
    frames: dict[str, Any] = {}
    for name in FRAMES:
        try:
            frames[name] = pd.read_parquet(path / f"{name}.parquet")
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(
                f"{name}.parquet of the packed sweep {path} cannot be read: "
                f"{str(error).splitlines()[0]}; pack the sweep again with Sweep.to_parquet"
            ) from None
    return Sweep(
        path=path,
        info=document.get("info", {}),
        space=document.get("space", {}),
        warnings=tuple(document.get("warnings", ())),
        **frames,
    )
