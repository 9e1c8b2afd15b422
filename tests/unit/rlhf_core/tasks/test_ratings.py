"""Reading rated texts, and the errors of files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.tasks.ratings import read_ratings

ROWS = [("fine, really", 1.5), ('"quoted" start', -2.0), ("naïve 日本", 0.0)]


def write(folder: Path, suffix: str) -> Path:
    file = folder / f"rated{suffix}"
    frame = pd.DataFrame(ROWS, columns=["text", "rating"])
    if suffix == ".tsv":
        lines = ["rating\ttext", *(f"{rating}\t{text}" for text, rating in ROWS)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif suffix == ".csv":
        frame.to_csv(file, index=False)
    elif suffix == ".parquet":
        frame.to_parquet(file)
    else:
        frame.to_json(file, orient="records", lines=True)
    return file


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".ndjson", ".json", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    rated = read_ratings(write(tmp_path, suffix))
    assert list(zip(rated.texts, rated.ratings, strict=True)) == ROWS
    assert rated.skipped == 0


def test_tsv_that_pandas_wrote_and_windows_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "rated.tsv"
    pd.DataFrame(ROWS, columns=["text", "rating"]).to_csv(
        file, sep="\t", index=False, lineterminator="\r\n", encoding="utf-8-sig"
    )
    assert read_ratings(file).texts == tuple(text for text, _ in ROWS)


def test_other_column_names(tmp_path: Path) -> None:
    file = tmp_path / "rated.csv"
    file.write_text("review,stars\ngood,5\nbad,1\n")
    rated = read_ratings(file, text_column="review", rating_column="stars")
    assert rated.ratings == (5.0, 1.0)


def test_rows_without_text_or_rating_are_skipped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "rated.jsonl"
    rows = [("good", 1), ("", 2), ("bad", None), ("ugly", -1), (None, 3)]
    file.write_text("\n".join(json.dumps({"text": t, "rating": r}) for t, r in rows))
    rated = read_ratings(file)
    assert rated.texts == ("good", "ugly")
    assert rated.skipped == 3


def test_missing_values_in_parquet_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "rated.parquet"
    pd.DataFrame({"text": ["a", "b", "c"], "rating": [1.0, None, 2.0]}).to_parquet(file)
    assert read_ratings(file).skipped == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"", "the file is empty"),
        ("a.csv", b"\n \n", "the file is empty"),
        ("a.txt", b"x", r"suffix must be one of \.tsv, .*got '\.txt'"),
        ("a.jsn", b"x", r"did you mean '\.json'"),
        ("a.tsv", b"txt\trating\ngood\t1\n", "'text' is needed, .*did you mean 'txt'"),
        ("a.csv", b"text,ratings\ngood,1\n", "'rating' is needed, .*did you mean 'ratings'"),
        ("a.tsv", b"text\trating\ngood\t1\nbad\tlow\n", "line 3: 'rating' must .*got 'low'"),
        ("a.csv", b"text,rating\ngood,1\nbad,nan\n", "line 3: 'rating' must .*got 'nan'"),
        ("a.csv", b'text,rating\n"a\nb",1\nbad,x\n', "line 4: 'rating' must"),
        ("a.csv", b'text,rating\n"open,1\n', "must be CSV"),
        ("a.jsonl", b'{"text": "a", "rating": 1}\n{"text"\n', "line 2: each line must be one JSON"),
        ("a.jsonl", b"[1]\n", "line 1: each line must be one JSON object, got list"),
        ("a.tsv", b"text\trating\nca\xe9\t1\n", "line 2: text must be UTF-8, got byte 0xe9"),
        ("a.parquet", b"PAR1 not really", "must be Parquet"),
        ("a.tsv", b"text\trating\ngood\t1\nbad\t\n", r"at least 2 rows .*there are 1 \(1 skipped"),
        ("a.tsv", b"text\trating\ngood\t1\nbad\t1\n", "ratings must differ, but all 2 are 1"),
    ],
)
def test_unusable_files_are_told_in_one_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_ratings(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_ratings(tmp_path / "none.tsv")
    with pytest.raises(ConfigError, match="is a folder"):
        read_ratings(tmp_path)


def test_too_few_rows_say_how_many(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"at least 50 rows .* there are 3"):
        read_ratings(write(tmp_path, ".csv"), minimum=50)


def test_a_missing_column_names_the_options_that_name_columns(tmp_path: Path) -> None:
    file = tmp_path / "rated.csv"
    for header in ("review,rating", "texts,rating"):
        file.write_text(f"{header}\ngood,5\nbad,1\n")
        with pytest.raises(ConfigError) as caught:
            read_ratings(file)
        line = str(caught.value)
        assert line.endswith("with --text-column and --rating-column.")
        assert "; name the columns" in line
