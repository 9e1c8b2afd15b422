"""Which parameters matter: Optuna's PED-ANOVA and fANOVA, with intervals over resampled trials."""

from __future__ import annotations

import datetime
import importlib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from analysis.space import SEED, Axis
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    import optuna

Method = Literal["ped-anova", "fanova"]
_FEWEST = 6
# PED-ANOVA compares the best trials with all; of fewer than these there is no distribution.
_TOP_TRIALS = 4
_TREES = 16


def importance(
    sweep: Sweep, method: Method = "ped-anova", repeats: int = 50, seed: int = 0
) -> pd.DataFrame:
    """The share of each parameter in what moves the objective, over completed trials.

    Parameters that took one value, or that some of these trials do not have, are left out, and so
    is the seed. PED-ANOVA asks what sets the best tenth of the trials apart (at least four of them),
    fANOVA what explains the whole variance.

    Args:
        sweep: A loaded sweep.
        method: ``ped-anova`` or ``fanova``.
        repeats: Resamples of trials for the interval; 0 leaves it NaN.
        seed: Of the resampling, and of the forest of fANOVA.

    Returns:
        Indexed by dotted key, the most important first: ``importance`` float64 (shares that add up
        to 1), ``low``, ``high`` (95 % over resampled trials). Empty where fewer than six completed
        trials or two such parameters are there.

    Raises:
        ConfigError: There is no such method.
    """
    if method not in ("ped-anova", "fanova"):
        raise ConfigError(f"method: must be ped-anova or fanova, got {method!r}")
    sweep = sweep.searched
    trials = sweep.trials
    done = trials[(trials["outcome"] == "completed") & trials["value"].notna()]
    axes = {key: axis for key, axis in sweep.axes.items() if _usable(done, key)}
    if len(done) < _FEWEST or len(axes) < 2:
        return pd.DataFrame(columns=["importance", "low", "high"], dtype="float64")
    with warnings.catch_warnings():
        # Of its progress bars, in a notebook without widgets.
        warnings.simplefilter("ignore")
        importlib.import_module("optuna")
    points, count = _points(done, axes), len(done)
    rng = np.random.default_rng(seed)
    whole = _shares(points.trials(range(count)), sweep, method, seed)
    drawn = [
        _shares(points.trials(rng.integers(0, count, count)), sweep, method, seed)
        for _ in range(repeats)
    ]
    resampled = pd.DataFrame(drawn, columns=list(axes), dtype="float64")
    low, high = (resampled.quantile(q) for q in (0.025, 0.975))
    frame = pd.DataFrame({"importance": pd.Series(whole), "low": low, "high": high})
    frame.index.name = "parameter"
    return frame.sort_values("importance", ascending=False, kind="stable")


def _usable(done: pd.DataFrame, key: str) -> bool:
    column = f"params.{key}"
    if key == SEED:
        return False
    return column in done and bool(done[column].notna().all()) and done[column].nunique() > 1


class _Points(NamedTuple):
    """Completed trials as Optuna sees them: parameters and value of each, and the distributions."""

    params: list[dict[str, Any]]
    values: list[float]
    distributions: dict[str, Any]

    def trials(self, chosen: Any) -> list[optuna.trial.FrozenTrial]:
        """The trials at these places, each a trial of its own also where one was drawn twice."""
        from optuna.trial import FrozenTrial, TrialState

        now = datetime.datetime.now()
        return [
            FrozenTrial(
                number=number,
                trial_id=number,
                state=TrialState.COMPLETE,
                value=self.values[place],
                datetime_start=now,
                datetime_complete=now,
                params=self.params[place],
                distributions=self.distributions,
                user_attrs={},
                system_attrs={},
                intermediate_values={},
            )
            for number, place in enumerate(chosen)
        ]


def _points(done: pd.DataFrame, axes: Mapping[str, Axis]) -> _Points:
    spread = {key: distribution(done[f"params.{key}"], axis) for key, axis in axes.items()}
    rows = done.to_dict("records")
    params = [{key: _plain(row[f"params.{key}"]) for key in axes} for row in rows]
    return _Points(params, [float(row["value"]) for row in rows], spread)


def distribution(values: pd.Series[Any], axis: Axis) -> Any:
    """Optuna's distribution that holds these values of a parameter, none of them missing."""
    from optuna import distributions as known

    plain = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if not plain or axis.values:
        offered = [_plain(v) for v in dict.fromkeys(values)]
        return known.CategoricalDistribution(sorted(offered, key=str))
    low = min(float(values.min()), axis.low if axis.low is not None else np.inf)
    high = max(float(values.max()), axis.high if axis.high is not None else -np.inf)
    if pd.api.types.is_integer_dtype(values):
        return known.IntDistribution(int(low), int(high), log=axis.log)
    return known.FloatDistribution(low, high, log=axis.log)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _shares(
    trials: list[optuna.trial.FrozenTrial], sweep: Sweep, method: Method, seed: int
) -> dict[str, float]:
    """Importance by parameter; equal shares where the objective does not vary among these trials."""
    import optuna

    keys = list(trials[0].params)
    if len({trial.value for trial in trials}) < 2:
        return dict.fromkeys(keys, 1 / len(keys))
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction=sweep.objective.direction)
        # add_trials would copy each trial deeply, for every resample; they are only read.
        setattr(study, "get_trials", lambda **_: trials)  # noqa: B010
        return optuna.importance.get_param_importances(
            study, evaluator=_evaluator(method, len(trials), seed), params=keys
        )
    finally:
        optuna.logging.set_verbosity(level)


def _evaluator(method: Method, count: int, seed: int) -> Any:
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator

    if method == "fanova":
        return FanovaImportanceEvaluator(seed=seed, n_trees=_TREES)
    return PedAnovaImportanceEvaluator(target_quantile=min(0.5, max(0.1, _TOP_TRIALS / count)))
