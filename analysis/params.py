"""The parameters of one trial as plain values, as a configuration takes them."""

from __future__ import annotations

from typing import Any

from analysis.sweep import Sweep


def parameters_of(sweep: Sweep, trial: str) -> dict[str, Any]:
    """What the search set in a trial, by dotted key: numbers, truth values, text, None and lists.

    Args:
        sweep: A loaded sweep.
        trial: One of its trials.
    """
    import pandas as pd

    row, axes = sweep.trials.loc[[trial]], sweep.axes
    found: dict[str, Any] = {}
    for column in (c for c in map(str, row.columns) if c.startswith("params.")):
        value = row[column].iloc[0]
        if pd.isna(value):
            continue
        key = column.removeprefix("params.")
        if isinstance(row[column].dtype, pd.CategoricalDtype):
            # A frame holds the names of choices; null and lists are among them as text.
            offered = axes[key].values if key in axes else ()
            named = {"null" if v is None else str(v): v for v in offered}
            found[key] = named.get(str(value), None if value == "null" else value)
        else:
            found[key] = value.item() if hasattr(value, "item") else value
    return found
