"""Where a search begins: at the centres of its space, then around them."""

from __future__ import annotations

import math
import zlib
from statistics import NormalDist
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from search_spaces import Space
from search_spaces.domains import same
from sweeps.config import SearchConfig
from sweeps.tuning.designs import at, is_drawn, place
from sweeps.tuning.space import to_study

# Standard deviation around a centre, in widths of the parameter's scale (PriorBand, arXiv:2306.12370).
SPREAD = 0.25
# How often a choice near its centre has it.
KEPT = 0.5
# The unit interval is open above.
_LAST = math.nextafter(1.0, 0.0)


class Prior:
    """Takes the place of uniform draws while the sampler has too few trials to model.

    The first trial that is no point has the centres. Of the numbers after it every ``1 / search.prior``-th one is
    drawn around them, parameter by parameter. Whatever has no centre is the sampler's.

    Args:
        search: Share, seed and startup trials.
        space: What is searched.
    """

    def __init__(self, search: SearchConfig, space: Space) -> None:
        self._share, self._seed = search.prior, search.seed
        self._startup = int(search.options.get("n_startup_trials", search.startup_trials))
        self._centres = to_study(space, space.centres)

    def draws(self, study: Study, trial: FrozenTrial, name: str) -> bool:
        """Whether the parameter, by its name in the study, is drawn here and not by the sampler."""
        if name not in self._centres:
            return False
        told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        if len(told) >= self._startup:
            return False
        return _is_first(study, trial) or self._is_around(trial.number)

    def draw(
        self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Its value: a function of the seed and the trial's number."""
        if _is_first(study, trial):
            return self._centres[name]
        words = [self._seed, trial.number, zlib.crc32(name.encode())]
        return near(distribution, self._centres[name], np.random.default_rng(words))

    def _is_around(self, number: int) -> bool:
        """Evenly spaced, so that the few trials of a beginning have the share as well."""
        return math.floor((number + 1) * self._share) > math.floor(number * self._share)


def prior_of(search: SearchConfig, space: Space) -> Prior | None:
    """None where the search begins blindly."""
    return Prior(search, space) if search.begins_at_centres and space.centres else None


def near(distribution: BaseDistribution, centre: Any, rng: np.random.Generator) -> Any:
    """A value drawn around ``centre``.

    Normal in the parameter's scale and cut at its bounds; of a choice the centre half of the time, else one of
    the others.
    """
    if isinstance(distribution, CategoricalDistribution):
        others = [value for value in distribution.choices if not same(value, centre)]
        if not others or rng.random() < KEPT:
            return centre
        return others[int(rng.random() * len(others))]
    normal = NormalDist(place(distribution, centre), SPREAD)
    low, high = normal.cdf(0.0), normal.cdf(1.0)
    unit = normal.inv_cdf(low + rng.random() * (high - low))
    return at(distribution, min(max(unit, 0.0), _LAST))


def _is_first(study: Study, trial: FrozenTrial) -> bool:
    """Whether no trial before this one was drawn: points come first."""
    before = study.get_trials(deepcopy=False)[: trial.number]
    return is_drawn(trial) and not any(map(is_drawn, before))
