"""All ``metrics.jsonl`` of a run directory as one frame, by way of a Parquet file where there is much to read.

``metrics.parquet`` holds the frame and, in its metadata, size and time of every file it was made from. It
counts only while all of them are as they were; it is never required and can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.files import read_lines, replacing
from analysis.frames import Curves, curves, iterations_frame
from analysis.shapes import METRICS
from rlhf_core.errors import ConfigError

CACHE = "metrics.parquet"
_KEY = b"rlhf_sweeps"
_FORMAT = 1
# Below this a fresh read takes less than a second.
_WORTH_BYTES = 20_000_000
_AT_REST_SECONDS = 600.0


class Metrics(NamedTuple):
    """The frame, the trials that have no file, and what could not be read."""

    iterations: pd.DataFrame
    silent: list[str]
    warnings: list[str]


def read_metrics(root: Path, trials: Sequence[str], cache: bool | None, at_rest: bool) -> Metrics:
    """The metrics of ``trials`` in the form of ``Sweep.iterations``.

    Args:
        root: The run directory.
        trials: Ids in the order of the frame.
        cache: True: read and write the Parquet file. False: neither. None: read it, and write it
            where that pays and nothing is being written any more.
        at_rest: No trial is under way.
    """
    sources = _sources(root, trials)
    silent = [trial for trial in trials if trial not in sources]
    mark = _fingerprint(sources)
    stored = None if cache is False else _read_cache(root / CACHE, mark)
    if stored is not None:
        return Metrics(stored[0], silent, stored[1])
    warnings: list[str] = []
    read: dict[str, Curves] = {}
    for trial in sources:
        name = f"trials/{trial}/metrics.jsonl"
        read[trial] = curves(_read_one(root / name, name, warnings))
    odd = sorted({name for own in read.values() for name in own.odd})
    if odd:
        warnings.append(f"metrics.jsonl: not only numbers in {', '.join(odd)}; the rest left out")
    frame = iterations_frame(read)
    if cache or (cache is None and _pays(sources, at_rest)):
        _write_cache(root / CACHE, mark, frame, warnings)
    return Metrics(frame, silent, warnings)


def _read_one(path: Path, name: str, warnings: list[str]) -> list[dict[str, Any]]:
    """The lines of one trial; without its file the others still load."""
    try:
        return read_lines(path, name, warnings, METRICS)
    except ConfigError as error:
        warnings += error.problems
        return []


Sources = dict[str, tuple[int, int]]


def _sources(root: Path, trials: Sequence[str]) -> Sources:
    """Size in bytes and time of change in ns of each trial's file; a trial without one is left out."""
    found = {}
    for trial in trials:
        try:
            stat = os.stat(f"{root}/trials/{trial}/metrics.jsonl")  # noqa: PTH116 - thousands of them
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            # A loop of links, for example: what reads it says so.
            found[trial] = (0, 0)
        else:
            found[trial] = (stat.st_size, stat.st_mtime_ns)
    return found


def _fingerprint(sources: Sources) -> str:
    return hashlib.blake2b(json.dumps(sources).encode(), digest_size=16).hexdigest()


def _pays(sources: Sources, at_rest: bool) -> bool:
    if sum(size for size, _ in sources.values()) < _WORTH_BYTES:
        return False
    latest = max(changed for _, changed in sources.values()) / 1e9
    return at_rest or time.time() - latest > _AT_REST_SECONDS


def _write_cache(path: Path, mark: str, frame: pd.DataFrame, warnings: list[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    note = json.dumps({"format": _FORMAT, "mark": mark, "warnings": warnings})
    # NaN stays NaN instead of null: reading needs no pass over the values.
    arrays = {str(c): pa.array(frame[c], from_pandas=c == "trial") for c in frame}
    table = pa.table(arrays).replace_schema_metadata({_KEY: note})
    try:
        with replacing(path) as draft:
            pq.write_table(
                table, draft, compression="lz4", use_dictionary=["trial"],
                use_byte_stream_split=[c for c in arrays if pa.types.is_floating(arrays[c].type)],
                write_statistics=False,
            )  # fmt: skip
    except OSError:
        # A folder that is read-only or full is read as it is, every time.
        return


def _read_cache(path: Path, mark: str) -> tuple[pd.DataFrame, list[str]] | None:
    """Frame and warnings, or None where the file is missing, damaged or made from other files."""
    if not path.is_file():
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        note: dict[str, Any] = json.loads((file.schema_arrow.metadata or {}).get(_KEY, b"{}"))
        if note.get("format") != _FORMAT or note.get("mark") != mark:
            return None
        names = file.schema_arrow.names
        # Column by column, so that no second copy of all of them is ever held.
        frame = {name: _column(file.read(columns=[name])[name]) for name in names}
    except (pa.ArrowException, OSError, ValueError):
        return None
    return pd.DataFrame(frame, copy=False), list(note["warnings"])


def _column(stored: Any) -> np.ndarray | pd.Categorical:
    import pyarrow as pa

    if pa.types.is_dictionary(stored.type):
        whole = stored.combine_chunks()
        # One chunk is one array; several come back as a chunked one of a shared dictionary.
        whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
        values = pd.Index(whole.dictionary.to_pandas(), dtype="str")
        return pd.Categorical.from_codes(whole.indices.to_numpy(), categories=values)
    out = np.empty(len(stored), stored.type.to_pandas_dtype())
    start = 0
    for chunk in stored.chunks:
        out[start : start + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
        start += len(chunk)
    return out
