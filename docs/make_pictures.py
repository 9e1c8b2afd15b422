"""Draws the pictures of docs/analysis.md: from the recorded quickstart, and from a simulated sweep where
the quickstart has nothing to show; and the curves of docs/smollm.md from its recording.

python docs/make_pictures.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import analysis
from analysis.plots import GALLERY

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs/images/analysis"
DATA = ROOT / "analysis/notebooks/data"
RECORDED = DATA / "quickstart"
# What docs/smollm.md shows of each trial.
CURVES = ("eval/heldout", "eval/proxy", "eval/kl_response", "eval/distinct_2", "eval/length")
_DPI = 100
_TRIALS = 48


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    recorded = analysis.load(RECORDED)
    with tempfile.TemporaryDirectory() as folder:
        simulated = analysis.load(_simulated(Path(folder) / "simulated"))
        for exhibit in GALLERY:
            figure = exhibit.plot(recorded)
            if not figure.axes:
                figure = exhibit.plot(simulated)
            figure.savefig(PICTURES / f"{exhibit.name}.png", dpi=_DPI)
    curves = analysis.plot_learning_curves(analysis.load(DATA / "smollm"), CURVES)
    curves.savefig(ROOT / "docs/images/smollm_curves.png", dpi=_DPI * 0.8)


def _simulated(path: Path) -> Path:
    """A sweep of two objectives on two nodes in which every configuration ran on several seeds."""
    sys.path.insert(0, str(ROOT / "tests/helpers"))
    from run_directories import TWO_GOALS, Builder, simulate_cluster

    builder = Builder(path, trials=_TRIALS, name="simulated", config=TWO_GOALS)
    simulate_cluster(builder, _TRIALS)
    return path


if __name__ == "__main__":
    main()
