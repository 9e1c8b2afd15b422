"""PB2: what a copy's parameters are to be, by a Gaussian process over what they have gained so far.

Parker-Holder et al. 2020 (https://arxiv.org/abs/2002.02518): the gain of a trial from one save point to the next
is a function of its parameters that drifts with time. Points whose gain is not known yet narrow the interval
around them, so that copies made at the same time differ.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from sweeps.decide.population import Member, Perturb, fitted, part_of, value_at

Array = NDArray[np.float64]
# Gains that the process is fitted to, the newest; and candidates that a choice is made among.
MOST, CANDIDATES = 400, 1024
# Bounds of the logarithms of length scale, forgetting per save point, and noise (of unit variance).
BOUNDS = ((math.log(0.05), math.log(5.0)), (math.log(1e-4), math.log(0.5)), (math.log(1e-3), 0.0))
START = (math.log(0.3), math.log(0.05), math.log(0.1))


def kernel(theta: Array, a: Array, b: Array) -> Array:
    """Squared exponential of the parameters times ``(1 - forgetting)^(time apart / 2)``.

    Args:
        theta: Logarithms of length scale, forgetting and noise.
        a: [N, 1 + D], time in the first column, then the parameters as parts of their domains.
        b: [M, 1 + D].

    Returns:
        [N, M].
    """
    scale, forgetting = math.exp(theta[0]), math.exp(theta[1])
    apart = ((a[:, None, 1:] - b[None, :, 1:]) ** 2).sum(axis=2)
    late = np.abs(a[:, None, 0] - b[None, :, 0])
    return np.asarray(np.exp(-apart / (2 * scale**2)) * (1 - forgetting) ** (late / 2))


def loss(theta: Array, x: Array, y: Array) -> float:
    """Negative logarithm of the marginal likelihood, up to a constant."""
    gram = kernel(theta, x, x) + math.exp(theta[2]) * np.eye(len(x))
    factor = cho_factor(gram, lower=True)
    return float(0.5 * y @ cho_solve(factor, y) + np.log(np.diag(factor[0])).sum())


def upper_bound(x: Array, y: Array, pending: Array, candidates: Array) -> Array:
    """Upper confidence bound of the gain at ``candidates``.

    Args:
        x: [N, 1 + D] with known gains.
        y: [N], standardised.
        pending: [P, 1 + D] whose gains are not known yet: they narrow the interval, but do not move the mean.
        candidates: [M, 1 + D].

    Returns:
        [M].
    """
    theta = minimize(loss, START, (x, y), "L-BFGS-B", bounds=BOUNDS).x
    noise = math.exp(theta[2])
    factor = cho_factor(kernel(theta, x, x) + noise * np.eye(len(x)), lower=True)
    mean = kernel(theta, candidates, x) @ cho_solve(factor, y)
    seen = np.concatenate([x, pending])
    factor = cho_factor(kernel(theta, seen, seen) + noise * np.eye(len(seen)), lower=True)
    cross = kernel(theta, candidates, seen)
    variance = 1.0 - np.einsum("mn,nm->m", cross, cho_solve(factor, cross.T))
    width = math.sqrt(0.2 + max(0.0, math.log(0.4 * len(x))))
    return np.asarray(mean + width * np.sqrt(np.maximum(variance, 0.0)))


@dataclass
class Bandit:
    """The explorer of PB2.

    Attributes:
        domains: ``{dotted key: Float}`` of what changes.
        first: Explores until there are gains to learn from.
    """

    domains: Mapping[str, Any]
    first: Perturb
    _gains: list[tuple[float, ...]] = field(default_factory=list)
    _pending: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def learn(self, trial: str, member: Member) -> None:
        self._pending.pop(trial, None)
        before = [passed for passed in member.scores if passed < member.passed]
        if before and all(key in member.params for key in self.domains):
            start = max(before)
            gain = (member.scores[member.passed] - member.scores[start]) / (member.passed - start)
            self._gains.append((*self._point(start, member.params), gain))

    def propose(self, trial: str, source: Member, draw: random.Random) -> dict[str, Any]:
        if len(self._gains) < 2 or any(key not in source.params for key in self.domains):
            return self.first.propose(trial, source, draw)
        known = np.array(self._gains[-MOST:])
        cube = np.random.default_rng(draw.getrandbits(63)).random((CANDIDATES, len(self.domains)))
        candidates = np.column_stack([np.full(CANDIDATES, float(source.passed)), cube])
        pending = np.array([*self._pending.values()]).reshape(-1, known.shape[1] - 1)
        gains = (known[:, -1] - known[:, -1].mean()) / (known[:, -1].std() or 1.0)
        bound = upper_bound(known[:, :-1], gains, pending, candidates)
        best = cube[int(bound.argmax())]
        chosen = {
            key: fitted(domain, value_at(domain, float(part)))
            for (key, domain), part in zip(self.domains.items(), best, strict=True)
        }
        self._pending[trial] = self._point(source.passed, {**source.params, **chosen})
        return chosen

    def _point(self, passed: int, params: Mapping[str, Any]) -> tuple[float, ...]:
        parts = (part_of(domain, params[key]) for key, domain in self.domains.items())
        return (float(passed), *parts)
