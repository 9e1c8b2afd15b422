from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import analysis

ROOT = Path(analysis.__file__).parent
NOTEBOOK = ROOT / "notebooks" / "compare_trials.ipynb"
PROBE = """
import json, sys, time
began = time.process_time()
import analysis
seconds = time.process_time() - began
first = sorted({m.split(".")[0] for m in sys.modules})
import analysis.plots, analysis.statistics, analysis.report
every = sorted({m.split(".")[0] for m in sys.modules})
print(json.dumps([seconds, first, every]))
"""
WORK = """
import json, sys
import analysis, analysis.report
sweep = analysis.load(sys.argv[1])
analysis.report.render(sweep)
print(json.dumps([m for m in ("torch", "ray", "transformers", "sweeps") if m in sys.modules]))
"""


def test_import_is_light():
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=True)
    seconds, first, every = json.loads(done.stdout)
    assert seconds < 1
    assert "rlhf_core" in first
    assert not {"torch", "ray", "matplotlib", "pandas", "numpy", "scipy", "rich"} & set(first)
    assert not {"torch", "ray", "matplotlib", "sweeps"} & set(every)


def test_a_whole_report_needs_neither_torch_nor_ray(simulated):
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(simulated(3))],
        cwd=ROOT.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_exports_are_pinned_and_callable():
    import analysis.leaderboard
    import analysis.load
    import analysis.status

    assert analysis.__all__ == [
        "Cheapest", "Sweep", "Within", "best", "best_so_far", "cheapest", "final_by", "finalists",
        "findings", "front", "leaderboard", "load",
        "plot_contour", "plot_costs", "plot_course", "plot_front", "plot_imbalance",
        "plot_importance", "plot_learning_curves", "plot_objectives", "plot_parallel",
        "plot_parameters", "plot_ratio", "plot_seeds", "plot_staleness", "plot_survival",
        "plot_timeline", "plot_volume", "render_leaderboard", "render_status", "save", "status",
        "write_report",
    ]  # fmt: skip
    assert all(callable(getattr(analysis, name)) for name in analysis.__all__)
    with pytest.raises(AttributeError, match="no attribute 'plot_nothing'"):
        _ = analysis.plot_nothing


def test_readme_plot_runs(simulated):
    code = (ROOT / "README.md").read_text().split("```python")[1].split("```")[0]
    scope: dict[str, object] = {}
    exec(code.replace("runs/quickstart", str(simulated(3))), scope)
    assert len(scope["sweep"].trials) == 3


def test_notebook_executes(simulated, monkeypatch):
    given = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT.parent), given])))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[1].source.startswith('RUN = "data/quickstart"')
    notebook.cells[1].source = f"RUN = {str(simulated(12))!r}"
    NotebookClient(
        notebook, timeout=60, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    assert not any(o.get("name") == "stderr" for o in outputs)
    assert sum("image/png" in o.get("data", {}) for o in outputs) == 2
    assert any("eligible" in o.get("text", "") for o in outputs)
