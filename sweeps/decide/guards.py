"""Guards: which trial has gone wrong by itself, whatever the others do. Decisions without I/O.

They come before any scheduler. A metric that is not reported is not judged, and what is judged is a trial's own
past, so that the same history gives the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, variance

from rlhf_core.metrics import first_nonfinite
from sweeps.decide.scheduling import Series

KL, ENTROPY = "kl/response", "policy/entropy"
LENGTH, TRUNCATED = "rollout/length", "rollout/truncated_share"
PROXY, HELDOUT = "reward/proxy", "reward/heldout"
EVAL, EVAL_ERROR = "eval/heldout", "eval/heldout_stderr"
WATCHED = (KL, ENTROPY, LENGTH, TRUNCATED, PROXY, HELDOUT, EVAL, EVAL_ERROR)
# Standard errors above the evaluation before, from which on a trial is on its way back.
RECOVERING = 3.0
# What each limit looks at.
LOOKS_AT: dict[str, tuple[str, ...]] = {
    "max_kl": (KL,),
    "min_entropy_share": (ENTROPY,),
    "max_length_ratio": (LENGTH,),
    "max_truncated_share": (TRUNCATED,),
    "max_heldout_fall": (HELDOUT,),
    "max_eval_fall": (EVAL, EVAL_ERROR),
    "hacking_fall": (PROXY, HELDOUT),
}
_NEEDS = {guard: frozenset(metrics) for guard, metrics in LOOKS_AT.items()}


Seen = Mapping[str, Series]


@dataclass(frozen=True)
class Limits:
    """The limits; None switches a guard off. ``sweeps.config.GuardsConfig`` says what each means."""

    max_kl: float | None = None
    min_entropy_share: float | None = None
    max_length_ratio: float | None = None
    max_truncated_share: float | None = None
    max_heldout_fall: float | None = None
    max_eval_fall: float | None = None
    hacking_fall: float | None = None
    window: int = 3
    patience: int = 3
    eval_patience: int = 3


@dataclass(frozen=True)
class Window:
    """The mean of some values in a row and the variance of that mean."""

    mean: float
    variance: float

    @classmethod
    def of(cls, values: list[float]) -> Window:
        return cls(fmean(values), variance(values) / len(values) if len(values) > 1 else 0.0)

    def below(self, other: Window) -> float:
        """By how many standard errors this mean is smaller; 0 where it is not."""
        fall = other.mean - self.mean
        spread = math.sqrt(self.variance + other.variance)
        return max(0.0, fall / max(spread, 1e-12 * max(1.0, abs(fall))))


@dataclass
class Guards:
    """Ends a trial whose numbers are not finite, or that is beyond a limit for ``patience`` reports in a row.

    Below its first evaluation it must be for ``eval_patience`` evaluations, or as many as are left where those are
    fewer: what fell early often comes back, what falls at the end has no time to.

    Attributes:
        limits: The limits.
        horizon: Iterations of a whole trial; None: not known.
    """

    limits: Limits
    horizon: int | None = None
    _seen: dict[str, dict[str, Series]] = field(default_factory=dict)
    _beyond: dict[str, dict[str, Series]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._on = [guard for guard in _GUARDS if getattr(self.limits, guard) is not None]

    def decide(self, trial: str, iteration: int, metrics: Mapping[str, float]) -> str | None:
        """Why the trial diverged, in words, or None."""
        wrong = first_nonfinite(metrics)
        if wrong is not None:
            return f"{wrong} is {metrics[wrong]}"
        seen = self._seen.setdefault(trial, {})
        for name in WATCHED:
            if name in metrics:
                _series(seen, name).add(iteration, metrics[name])
        for guard in self._on:
            if metrics.keys() >= _NEEDS[guard]:
                told = _GUARDS[guard](seen, self.limits)
                reports = _series(self._beyond.setdefault(trial, {}), guard)
                reports.add(iteration, float(told is not None))
                if told is None:
                    continue
                needed, what = self._patience(guard, seen)
                last = reports.values[-needed:]
                if len(last) == needed and all(last):
                    return f"{told}, for {needed} {what} in a row"
        return None

    def _patience(self, guard: str, seen: Seen) -> tuple[int, str]:
        """How many reports in a row must be beyond the limit, and what they are called."""
        if guard != "max_eval_fall":
            return self.limits.patience, "reports"
        at, needed = seen[EVAL].iterations, self.limits.eval_patience
        if self.horizon is not None and len(at) > 1:
            left = math.ceil((self.horizon - at[-1]) / (at[-1] - at[-2]))
            needed = max(1, min(needed, left))
        return needed, "evaluations"

    def fork(self, trial: str, source: str, step: int) -> None:
        """The trial goes on from the source's checkpoint of iteration ``step``: what led there is its past now."""
        for known in (self._seen, self._beyond):
            past = known.get(source, {})
            known[trial] = {name: series.until(step) for name, series in past.items()}


def _series(known: dict[str, Series], name: str) -> Series:
    found = known.get(name)
    if found is None:
        found = known[name] = Series()
    return found


def _high_kl(seen: Seen, limits: Limits) -> str | None:
    kl, most = seen[KL].values[-1], limits.max_kl
    return f"{KL} is {kl:.3g} nats, above guards.max_kl = {most:g}" if most and kl > most else None


def _low_entropy(seen: Seen, limits: Limits) -> str | None:
    first, now = seen[ENTROPY].values[0], seen[ENTROPY].values[-1]
    least = (limits.min_entropy_share or 0.0) * first
    if first <= 0 or now >= least:
        return None
    return (
        f"{ENTROPY} is {now:.3g} nats, below guards.min_entropy_share = {limits.min_entropy_share:g} of the "
        f"{first:.3g} it began with"
    )


def _long(seen: Seen, limits: Limits) -> str | None:
    first, now = seen[LENGTH].values[0], seen[LENGTH].values[-1]
    if first <= 0 or now <= (limits.max_length_ratio or math.inf) * first:
        return None
    return (
        f"{LENGTH} is {now:.3g} tokens, above guards.max_length_ratio = {limits.max_length_ratio:g} times the "
        f"{first:.3g} it began with"
    )


def _truncated(seen: Seen, limits: Limits) -> str | None:
    first, now = seen[TRUNCATED].values[0], seen[TRUNCATED].values[-1]
    most = limits.max_truncated_share or math.inf
    # Where responses were cut off from the start on, that is the task and no blow-up.
    if first > most / 2 or now <= most:
        return None
    return f"{TRUNCATED} is {now:.3g}, above guards.max_truncated_share = {most:g}; it began with {first:.3g}"


def _fallen(seen: Seen, limits: Limits) -> str | None:
    values, size = seen[HELDOUT].values, limits.window
    if len(values) < 2 * size:
        return None
    first, now = Window.of(values[:size]), Window.of(values[-size:])
    fall = now.below(first)
    if fall <= (limits.max_heldout_fall or math.inf):
        return None
    return (
        f"{HELDOUT} fell from {first.mean:.3g} to {now.mean:.3g}, by {fall:.2g} standard errors, above "
        f"guards.max_heldout_fall = {limits.max_heldout_fall:g}"
    )


def _worse(seen: Seen, limits: Limits) -> str | None:
    """Below the first evaluation, and not on its way back from the one before."""
    rows = [*zip(seen[EVAL].values, seen[EVAL_ERROR].values, strict=False)]
    first, now = (Window(value, error**2) for value, error in (rows[0], rows[-1]))
    before = Window(rows[-2][0], rows[-2][1] ** 2) if len(rows) > 1 else first
    fall = now.below(first)
    if fall <= (limits.max_eval_fall or math.inf) or before.below(now) > RECOVERING:
        return None
    return (
        f"{EVAL} fell from {first.mean:.3g} to {now.mean:.3g}, by {fall:.2g} standard errors, above "
        f"guards.max_eval_fall = {limits.max_eval_fall:g}"
    )


def _hacking(seen: Seen, limits: Limits) -> str | None:
    """The optimised reward is higher than when the held-out one was best, and that has fallen since."""
    heldout, proxy, size = seen[HELDOUT].values, seen[PROXY].values, limits.window
    count = min(len(heldout), len(proxy))
    if count < 2 * size:
        return None
    heldout, proxy = heldout[-count:], proxy[-count:]
    ends = range(size, count - size + 1)
    best = max(ends, key=lambda end: fmean(heldout[end - size : end]))
    peak, now = Window.of(heldout[best - size : best]), Window.of(heldout[-size:])
    then, today = Window.of(proxy[best - size : best]), Window.of(proxy[-size:])
    fall = now.below(peak)
    if fall <= (limits.hacking_fall or math.inf) or today.mean <= then.mean:
        return None
    return (
        f"{PROXY} rose from {then.mean:.3g} to {today.mean:.3g} while {HELDOUT} fell from {peak.mean:.3g} to "
        f"{now.mean:.3g}, by {fall:.2g} standard errors, above guards.hacking_fall = {limits.hacking_fall:g}"
    )


_GUARDS: dict[str, Callable[[Seen, Limits], str | None]] = {
    "max_kl": _high_kl,
    "min_entropy_share": _low_entropy,
    "max_length_ratio": _long,
    "max_truncated_share": _truncated,
    "max_heldout_fall": _fallen,
    "max_eval_fall": _worse,
    "hacking_fall": _hacking,
}
