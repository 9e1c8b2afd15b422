"""Statistics of few runs against rliable 1.2.0, in an environment of its own.

pytest -m long -s tests/integration/test_rliable.py
"""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
from peers import peer_python

from analysis import statistics

pytestmark = pytest.mark.long
REPEATS = 5_000
TAUS = np.linspace(-2, 2, 9)
# Reads two algorithms' scores [runs, tasks], prints what rliable makes of them.
THEIRS = """
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from rliable import library, metrics
given = json.load(sys.stdin)
x, y = np.array(given["x"]), np.array(given["y"])
taus = np.array(given["taus"])
def iqm(scores): return np.array([metrics.aggregate_iqm(scores)])
point, span = library.get_interval_estimates(
    {"a": x}, iqm, reps=given["repeats"], random_state=np.random.RandomState(0)
)
profile, _ = library.create_performance_profile({"a": x}, taus, reps=10)
print(json.dumps({
    "iqm": [float(point["a"][0]), *(float(bound) for bound in span["a"][:, 0])],
    "probability_of_improvement": float(metrics.probability_of_improvement(x, y)),
    "performance_profile": profile["a"].tolist(),
}))
"""


@pytest.fixture(scope="module")
def scores():
    """Two algorithms on five tasks: 7 and 9 runs of each."""
    rng = np.random.default_rng(3)
    return rng.normal(0.3, 1, (7, 5)), rng.normal(0, 1, (9, 5))


@pytest.fixture(scope="module")
def theirs(scores):
    x, y = (own.tolist() for own in scores)
    given = json.dumps({"x": x, "y": y, "taus": TAUS.tolist(), "repeats": REPEATS})
    done = subprocess.run(
        [peer_python("rliable"), "-c", THEIRS], input=given, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(json.dumps(found))
    return found


def test_interquartile_mean_and_its_stratified_bootstrap(scores, theirs):
    ours = statistics.bootstrap(list(scores[0].T), repeats=REPEATS)
    print(json.dumps(ours))
    assert ours[0] == pytest.approx(theirs["iqm"][0], rel=1e-12)
    # Two bootstraps of 5,000 resamples each differ by some hundredths of their width.
    assert ours[1:] == pytest.approx(theirs["iqm"][1:], abs=0.04 * (ours[2] - ours[1]))


def test_probability_of_improvement(scores, theirs):
    ours = statistics.probability_of_improvement(*(list(own.T) for own in scores))
    assert ours == pytest.approx(theirs["probability_of_improvement"], rel=1e-12)


def test_performance_profile(scores, theirs):
    ours = statistics.performance_profile(list(scores[0].T), TAUS)
    assert ours == pytest.approx(theirs["performance_profile"], rel=1e-12)
