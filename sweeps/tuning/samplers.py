"""Samplers by name or import path, each trial with one of its own.

What a trial is asked to be is a function of the seed, its number and what the study holds: a study that is opened
again goes on as if it had never been closed, and no sampler is ever pickled.
"""

from __future__ import annotations

import importlib.util
import warnings
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from rlhf_core.errors import ConfigError
from rlhf_core.imports import import_named
from search_spaces import Float, Int, Space
from sweeps.config import SearchConfig
from sweeps.tuning.designs import MAX_CELLS, REJECTED, GridSampler, SobolSampler, cells
from sweeps.tuning.prior import Prior, prior_of

# Proposals of a sampler that may be rejected in a row. It does not learn from them, and where what it takes for
# good breaks a rule it would propose hardly anything else.
MOST_REJECTED = 20
Build = Callable[[int], BaseSampler]
"""Seed to a sampler."""


def make_sampler(search: SearchConfig, space: Space) -> BaseSampler:
    """The sampler of a study.

    Raises:
        ConfigError: It cannot be made: an unknown option, a missing package, an import path that leads nowhere.
    """
    if search.sampler == "grid":
        return GridSampler(_cells(space, search.grid_points), search.seed)
    if search.sampler == "qmc":
        return SobolSampler(space, search.seed)
    if ":" not in search.sampler:
        return PerTrial(_named(search), search.seed, prior_of(search, space))
    found = import_named(search.sampler, "search.sampler", "name")
    if isinstance(found, BaseSampler):
        return Single(found)
    return PerTrial(_imported(found, search), search.seed)


class PerTrial(BaseSampler):
    """Makes a sampler for each trial, and for each parameter that is drawn by itself.

    So nothing of a draw depends on which others came before it in this process. After ``MOST_REJECTED`` rejected
    proposals in a row parameters are drawn uniformly, until one is not rejected.

    Args:
        build: Makes the sampler of a trial.
        seed: The study's.
        prior: Draws in the sampler's place at the beginning of a study; None: nothing does.
    """

    def __init__(self, build: Build, seed: int, prior: Prior | None = None) -> None:
        self._build, self._seed, self._prior = build, seed, prior
        self._joint: BaseSampler | None = None
        # The trial that is drawn uniformly.
        self._uniform: int | None = None

    def of(self, number: int, purpose: str) -> BaseSampler:
        """The sampler of a trial: for its parameters together (``purpose`` is ""), or for one of them."""
        return self._build(_seed_of(self._seed, number, purpose))

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        if _is_cornered(study, trial.number):
            self._uniform = trial.number
            return {}
        self._joint = self.of(trial.number, "")
        return self._joint.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        joint = self._joint or self.of(trial.number, "")
        return joint.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        if self._uniform == trial.number:
            uniform = PerTrial(RandomSampler, self._seed).of(trial.number, param_name)
            return uniform.sample_independent(study, trial, param_name, param_distribution)
        if self._prior is not None and self._prior.draws(study, trial, param_name):
            return self._prior.draw(study, trial, param_name, param_distribution)
        sampler = self.of(trial.number, param_name)
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.of(trial.number, "").before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        self.of(trial.number, "").after_trial(study, trial, state, values)


def _is_cornered(study: Study, number: int) -> bool:
    """Whether the proposals before trial ``number`` were rejected, so many in a row that its sampler gives way."""
    if number < MOST_REJECTED:
        return False
    before = study.get_trials(deepcopy=False)[number - MOST_REJECTED : number]
    return all(trial.user_attrs.get("outcome") == REJECTED for trial in before)


@lru_cache(maxsize=1024)
def _seed_of(seed: int, number: int, purpose: str) -> int:
    words = [seed, number, zlib.crc32(purpose.encode())]
    return int(np.random.SeedSequence(words).generate_state(1)[0])


class Single(BaseSampler):
    """A sampler that was made by somebody else and keeps its own random state.

    In a study that already holds trials it is seeded anew, or it would repeat what it proposed at the start.
    """

    def __init__(self, sampler: BaseSampler) -> None:
        self.sampler, self._used = sampler, False

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self.sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self.sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if not self._used and trial.number > 0:
            self.sampler.reseed_rng()
        self._used = True
        self.sampler.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        self.sampler.after_trial(study, trial, state, values)


def underneath(sampler: BaseSampler) -> BaseSampler:
    """The sampler that draws, of one that ``make_sampler`` made."""
    if isinstance(sampler, PerTrial):
        return sampler.of(0, "")
    return sampler.sampler if isinstance(sampler, Single) else sampler


def _named(search: SearchConfig) -> Build:
    startup = search.startup_trials
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "tpe": (optuna.samplers.TPESampler, {"n_startup_trials": startup}),
        "gp": (
            optuna.samplers.GPSampler,
            {"n_startup_trials": startup, "warn_independent_sampling": False},
        ),
        "cmaes": (optuna.samplers.CmaEsSampler, {"warn_independent_sampling": False}),
        # The first generation is random: it is what startup trials are to the others.
        "nsga2": (optuna.samplers.NSGAIISampler, {"population_size": startup}),
        "nsga3": (optuna.samplers.NSGAIIISampler, {"population_size": startup}),
        "random": (optuna.samplers.RandomSampler, {}),
    }
    kind, defaults = kinds[search.sampler]
    options = {**defaults, **search.options}
    if search.sampler in ("tpe", "random") and not options.get("group"):
        return Reseeded(lambda: _quiet(kind, seed=0, **options))
    return lambda seed: _quiet(kind, seed=seed, **options)


class Reseeded:
    """Gives one sampler a new seed where another one would be made: to make a generator takes 20 times as long.

    Only for samplers whose draws follow from their generators and the study alone. Beside them TPE keeps the space
    that all trials of the study share, as far as it has read them; that is the same for whoever reads them anew.

    Args:
        make: Makes the sampler.
    """

    def __init__(self, make: Callable[[], BaseSampler]) -> None:
        self._make = make
        self._made: BaseSampler | None = None

    def __call__(self, seed: int) -> BaseSampler:
        self._made = self._made or self._make()
        # TPE draws from its own generator, and at the beginning from that of the random sampler inside it.
        for sampler in (self._made, getattr(self._made, "_random_sampler", None)):
            if sampler is not None:
                sampler._rng.rng.seed(seed)
        return self._made


def _imported(found: Any, search: SearchConfig) -> Build:
    def build(seed: int) -> BaseSampler:
        try:
            made = _quiet(found, seed=seed, **search.options)
        # It is the user's code and may raise anything.
        except Exception as error:
            raise ConfigError(
                f"search.sampler: {search.sampler!r} must make a sampler from seed=... and "
                f"search.options: {error!r}"
            ) from error
        if not isinstance(made, BaseSampler):
            raise ConfigError(
                f"search.sampler: {search.sampler!r} must make an Optuna sampler, "
                f"but makes a {type(made).__name__}"
            )
        return made

    return build


def _quiet(kind: Any, **options: Any) -> Any:
    """A sampler is made for every trial; what Optuna warns of at each is told in docs/search.md."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return kind(**options)


def _cells(space: Space, count: int) -> list[dict[str, Any]]:
    found = cells(space, count)
    if len(found) > MAX_CELLS:
        raise ConfigError(
            f"search.sampler: the grid has more than {MAX_CELLS} cells; lower search.grid_points ({count}), "
            "or search fewer parameters"
        )
    return found


def sampler_problems(search: SearchConfig, space: Space) -> list[str]:
    """Why the sampler cannot search the space; empty where it can."""
    name = search.sampler
    found = _misfits(search, space)
    if "seed" in search.options:
        found.append("search.options: 'seed' is search.seed; set that")
    if name == "cmaes" and importlib.util.find_spec("cmaes") is None:
        found.append("search.sampler: cmaes needs the package of that name; pip install cmaes")
    if found:
        return found
    try:
        underneath(make_sampler(search, space))
    except ConfigError as error:
        return list(error.problems)
    except (TypeError, ValueError) as error:
        return [f"search.options: {name} does not take them: {error}"]
    return []


def _misfits(search: SearchConfig, space: Space) -> list[str]:
    found = []
    if search.sampler == "cmaes":
        if len(search.goals) > 1:
            found.append(
                f"search.sampler: cmaes knows one objective, but search.objectives has {len(search.goals)}; "
                "take tpe, gp, nsga2 or nsga3"
            )
        ranges = [key for key in space if isinstance(space[key].domain, Float | Int)]
        if len(ranges) < 2:
            found.append(
                f"search.sampler: cmaes needs two float or int parameters, but the space has {len(ranges)}; "
                "take tpe or gp"
            )
    if search.sampler in ("nsga2", "nsga3") and search.startup_trials < 2:
        found.append(
            f"search.startup_trials: the population of {search.sampler} is at least 2, but is 1"
        )
    if search.options and search.sampler in ("grid", "qmc"):
        found.append(f"search.options: {search.sampler} takes none; remove them")
    return found
