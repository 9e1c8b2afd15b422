"""Reward hacking as numbers: the optimised reward goes on rising while the held-out one falls."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.sweep import Sweep

PAIRS = (("eval/proxy", "eval/heldout"), ("reward/proxy", "reward/heldout"))
_FEWEST = 3
_SURE = 2.0


def hacking_signs(sweep: Sweep) -> pd.DataFrame:
    """Each trial's course after the peak of its held-out reward.

    The drop counts as real where it exceeds twice its standard error: the reported one, or else one
    estimated from the differences of successive measurements.

    Returns:
        Indexed by trial, those with three measurements of both: ``peak`` int64 (iteration of the
        highest held-out reward), ``drop`` float64 (from the peak to the end), ``error`` float64 (its
        standard error), ``gain`` float64 (of the optimised reward in the same time), ``hacked``
        bool. Empty where the program reports no such pair.
    """
    columns = ["peak", "drop", "error", "gain", "hacked"]
    curves = sweep.iterations
    pair = next((p for p in PAIRS if set(p) <= set(curves)), None)
    if pair is None:
        return pd.DataFrame(columns=columns)
    proxy, heldout = pair
    noise = f"{heldout}_stderr"
    wanted = ["trial", "iteration", proxy, heldout, *([noise] if noise in curves else [])]
    rows = curves[wanted].dropna(subset=[proxy, heldout])
    found = {
        str(trial): _course(own[proxy], own[heldout], own["iteration"], own.get(noise))
        for trial, own in rows.groupby("trial", observed=True)
        if len(own) >= _FEWEST
    }
    frame = pd.DataFrame.from_dict(found, orient="index", columns=columns)
    frame.index = pd.Index(frame.index, dtype="str", name="trial")
    return frame.astype({"peak": "int64", "hacked": "bool"}) if len(frame) else frame


def _course(
    proxy: pd.Series[float],
    heldout: pd.Series[float],
    iteration: pd.Series[int],
    errors: pd.Series[float] | None,
) -> tuple[int, float, float, float, bool]:
    held, optimised = heldout.to_numpy(), proxy.to_numpy()
    top = int(held.argmax())
    drop, gain = float(held[top] - held[-1]), float(optimised[-1] - optimised[top])
    known = errors is not None and bool(errors.notna().all())
    if known and errors is not None:
        both = errors.to_numpy()[[top, -1]]
    else:
        # Of independent errors the differences have twice the variance; the median forgives jumps.
        spread = float(np.median(np.abs(np.diff(held)))) / 0.6745 / np.sqrt(2)
        both = np.array([spread, spread])
    error = float(np.sqrt((both**2).sum()))
    hacked = drop > _SURE * error and gain > 0
    return int(iteration.iloc[top]), drop, error, gain, hacked
