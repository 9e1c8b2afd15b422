"""Read rated texts from TSV, CSV, JSON lines or Parquet, told apart by suffix."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import ConfigError, nearest

SUFFIXES = (".tsv", ".csv", ".jsonl", ".ndjson", ".json", ".parquet")
Row = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True)
class RatedTexts:
    """Texts with their ratings, in file order.

    Attributes:
        texts: Texts, none empty, white space at the ends removed.
        ratings: One finite number a text; higher is better.
        skipped: Rows left out because the text or the rating was empty.
    """

    texts: tuple[str, ...]
    ratings: tuple[float, ...]
    skipped: int = 0


def read_ratings(
    path: str | Path,
    text_column: str = "text",
    rating_column: str = "rating",
    minimum: int = 2,
) -> RatedTexts:
    """Read a file of rated texts. Rows without text or without rating are left out.

    Args:
        path: File; its suffix says the format. Text formats are UTF-8, the first line of TSV and
            CSV names the columns.
        text_column: Column of the texts.
        rating_column: Column of the ratings.
        minimum: Fewest usable rows.

    Raises:
        ConfigError: The file is missing, empty, not readable as its format, lacks a column, holds a
            rating that is no finite number, has too few usable rows, or rates all texts the same.
    """
    file = Path(path).expanduser()
    columns, unit, rows = _open(file)
    missing = [name for name in (text_column, rating_column) if name not in columns]
    if missing:
        raise ConfigError(
            f"{file}: a column named {missing[0]!r} is needed, there are "
            f"{', '.join(map(repr, columns)) or 'none'}{nearest(missing[0], columns)}; name the columns "
            "of texts and ratings with --text-column and --rating-column."
        )
    texts: list[str] = []
    ratings: list[float] = []
    skipped = 0
    for number, row in rows:
        text, rating = row.get(text_column), row.get(rating_column)
        if _empty(text) or _empty(rating):
            skipped += 1
            continue
        texts.append(str(text).strip())
        ratings.append(_rating(file, f"{unit} {number}", rating_column, rating))
    _check(file, ratings, skipped, minimum)
    return RatedTexts(tuple(texts), tuple(ratings), skipped)


def _open(file: Path) -> tuple[Sequence[str], str, Iterable[Row]]:
    """Column names, what a row is called in messages, and numbered rows."""
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise ConfigError(f"rated texts must be a file, but {file} {what}; check the path")
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"{file}: the suffix must be one of {', '.join(SUFFIXES)}, got {suffix or 'none'!r}"
            f"{nearest(suffix, SUFFIXES)}; rename or convert the file"
        )
    if file.stat().st_size == 0:
        raise ConfigError(f"{file}: must hold rated texts, but the file is empty; give another")
    if suffix == ".parquet":
        return _parquet(file)
    text = _decode(file)
    if not text.strip():
        raise ConfigError(f"{file}: must hold rated texts, but the file is empty; give another")
    if suffix == ".tsv":
        return _tsv(text)
    return _csv(file, text) if suffix == ".csv" else _json_lines(file, text)


def _decode(file: Path) -> str:
    data = file.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{file}: line {line}: text must be UTF-8, got byte 0x{data[error.start]:02x}; "
            "convert the file to UTF-8"
        ) from None


def _tsv(text: str) -> tuple[Sequence[str], str, Iterable[Row]]:
    # Tab-separated files rarely quote, and texts often begin with a quotation mark: only a field
    # that is quoted as a whole, with inner marks doubled, is taken as quoted.
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    columns = [_unquote(name) for name in lines[0].split("\t")]

    def rows() -> Iterator[Row]:
        for number, line in enumerate(lines[1:], start=2):
            yield number, dict(zip(columns, map(_unquote, line.split("\t")), strict=False))

    return columns, "line", rows()


def _unquote(value: str) -> str:
    inner = value[1:-1]
    quoted = len(value) >= 2 and value[0] == value[-1] == '"' and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if quoted else value


def _csv(file: Path, text: str) -> tuple[Sequence[str], str, Iterable[Row]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)

    def records() -> Iterator[tuple[int, list[str]]]:
        try:
            for record in reader:
                yield reader.line_num, record
        except csv.Error as error:
            raise ConfigError(
                f"{file}: line {reader.line_num}: must be CSV, got {error}; quote fields that hold "
                "commas, quotes or line ends"
            ) from None

    numbered = records()
    columns = next(numbered)[1]
    return (
        columns,
        "line",
        ((number, dict(zip(columns, row, strict=False))) for number, row in numbered),
    )


def _json_lines(file: Path, text: str) -> tuple[Sequence[str], str, Iterable[Row]]:
    rows: list[Row] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(
                f"{file}: line {number}: each line must be one JSON object, got {error}; "
                "write one object a line"
            ) from None
        if not isinstance(row, dict):
            raise ConfigError(
                f"{file}: line {number}: each line must be one JSON object, "
                f"got {type(row).__name__}; write one object a line"
            )
        rows.append((number, row))
    return list(dict.fromkeys(key for _, row in rows for key in row)), "line", rows


def _parquet(file: Path) -> tuple[Sequence[str], str, Iterable[Row]]:
    # Imported here, since text formats do without it and it takes a while.
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{file}: must be Parquet, got {reason}; write the file again") from None
    return table.column_names, "row", enumerate(table.to_pylist(), start=1)


def _empty(value: object) -> bool:
    # A missing number reads as NaN from Parquet files written by pandas.
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return missing or (isinstance(value, str) and not value.strip())


def _rating(file: Path, place: str, column: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"{file}: {place}: {column!r} must be a finite number, got {value!r}; "
            "correct it, or leave it empty to skip the row"
        )
    return number


def _check(file: Path, ratings: Sequence[float], skipped: int, minimum: int) -> None:
    if len(ratings) < minimum:
        raise ConfigError(
            f"{file}: at least {minimum} rows with text and rating are needed, there are "
            f"{len(ratings)} ({skipped} skipped as empty); give more rows"
        )
    if min(ratings) == max(ratings):
        raise ConfigError(
            f"{file}: ratings must differ, but all {len(ratings)} are {ratings[0]:g}; "
            "check the rating column"
        )
