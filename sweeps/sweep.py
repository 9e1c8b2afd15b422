"""``Sweep``: launch a sweep from a script. The command line does nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rlhf_core.errors import ClusterError, PlacementError
from rlhf_core.runtime.placement import Node, group_request, with_node_types
from sweeps.driver import SweepDriver
from sweeps.live import LiveView
from sweeps.load import Loaded, corner_points, load_sweep
from sweeps.plan import SweepPlan, plan_sweep, spill_note
from sweeps.record import RunDirectory, check_target, storage_root
from sweeps.results import Results, write_results
from sweeps.services import asked_at_corners
from sweeps.signals import sigterm_interrupts
from sweeps.stages import stages
from sweeps.terminal import print_notes


class Interrupted(KeyboardInterrupt):
    """The sweep was stopped; its directory holds everything up to then."""


class Sweep:
    """A checked sweep.

    Example:
        >>> from sweeps import Sweep
        >>> results = Sweep.from_yaml("quickstart").run("runs/quickstart")
        >>> results.best
    """

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded

    @classmethod
    def from_yaml(cls, source: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
        """From a file or a preset's name.

        Args:
            source: File or preset.
            overrides: ``{dotted key of the sweep: value}``, such as ``{"search.trials": 4}``.

        Raises:
            ConfigError: With every problem found.
        """
        return cls(load_sweep(str(source), overrides))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Sweep:
        """From plain values, keys as in a sweep.yaml."""
        return cls(load_sweep(values))

    def plan(self, nodes: list[Node] | None = None) -> SweepPlan:
        """What the sweep would do on ``nodes``, by default on those its cluster section promises."""
        from sweeps.tuning.cluster import expected_nodes, node_types

        config = self.loaded.config.cluster
        known = nodes if nodes is not None else expected_nodes(config)
        return plan_sweep(self.loaded, with_node_types(known or [], node_types(config)))

    def notes(self) -> list[str]:
        """What is easily taken for something else, one line each."""
        config, space = self.loaded.config, self.loaded.space
        points = corner_points(space) or [{}]
        return self.loaded.program.notes(self.loaded.base, points[0], config.search.objective)

    def check(self, out: str | Path) -> None:
        """Refuses what can be seen to fail before anything starts.

        Args:
            out: The run directory.

        Raises:
            ConfigError: The folder is in use or cannot be written, or no node can hold a trial.
        """
        from sweeps.tuning.cluster import expected_nodes

        expected = expected_nodes(self.loaded.config.cluster)
        if expected is not None:
            _refuse(self.plan(expected))
        check_target(Path(out).expanduser().absolute())

    def run(self, out: str | Path, console: Console | None = None) -> Results:
        """Runs the sweep to its end.

        Args:
            out: The run directory; must not hold anything yet.
            console: Where progress goes.

        Raises:
            ConfigError: Before Ray starts: the folder is in use, or no node can hold a trial.
            ClusterError: Ray does not start.
            Interrupted: After Ctrl-C or SIGTERM, once everything is stopped and recorded.
        """
        from sweeps.tuning import cluster

        console = console or Console(stderr=True)
        config, directory = self.loaded.config, Path(out).expanduser().absolute()
        self.check(directory)
        self._prepare(console)
        with contextlib.ExitStack() as stack:
            stack.enter_context(sigterm_interrupts())
            with console.status("starting Ray"):
                nodes = stack.enter_context(cluster.running(config.cluster, self._store_gb()))
            # Ray took the signal for itself when it started.
            stack.enter_context(sigterm_interrupts())
            driver = self._drive(directory, nodes, console)
        for problem in driver.problems:
            console.print(f"[red]a plug-in failed and was passed over:[/red] {problem}")
        if driver.cluster_lost:
            raise ClusterError(
                f"cluster: all nodes are gone; {directory} holds everything up to then"
            )
        if driver.interrupted:
            raise Interrupted(str(directory))
        with sigterm_interrupts():
            results = write_results(self.loaded, directory, console)
        notes = [f"no further trial was started: {driver.given_up}"] if driver.given_up else []
        notes += filter(None, [driver.choice.note(driver.records.values())])
        return replace(results, notes=(*notes, *results.notes))

    def _drive(self, directory: Path, nodes: list[Node], console: Console) -> SweepDriver:
        """Runs the trials on the connected cluster."""
        from sweeps.tuning import cluster, runner
        from sweeps.tuning.services import serving
        from sweeps.tuning.study import Study

        config, program, base = self.loaded.config, self.loaded.program, self.loaded.base
        plan = self.plan(nodes)
        _refuse(plan)
        print_notes(console, filter(None, [spill_note(plan)]))
        record = RunDirectory(directory)
        record.write_sweep(self.loaded, [asdict(node) for node in nodes])
        study = Study(
            directory,
            config.name,
            config.search,
            self.loaded.space,
            lambda params: program.check(base, params),
        )
        checkpoints = storage_root(directory, config.storage.checkpoints)
        asked = [group_request(plan.shapes[0].plan)] * plan.max_concurrent
        asked += [group_request(service.plan) for service in plan.services]
        with (
            cluster.prewarmed(asked if config.cluster.prewarm else []),
            serving(config.cluster.services, record, plan.nodes) as services,
            LiveView(console, plan.iterations, config.tracking.print_every_s) as view,
        ):
            services.start(asked_at_corners(self.loaded))
            driver = SweepDriver(
                self.loaded, record, study, list(plan.nodes), plan.max_concurrent, services
            )
            runner.run(driver, checkpoints, view)
            view.refresh(driver, now_or_never=True)
        return driver

    def _store_gb(self) -> float:
        """Object store that a Ray of its own is started with; models are known once they are prepared."""
        from sweeps.tuning.cluster import expected_nodes

        expected = expected_nodes(self.loaded.config.cluster)
        return 0.0 if expected is None else self.plan(expected).store_gb

    def _prepare(self, console: Console) -> None:
        """Builds what trials read before anything is scheduled."""
        with stages(console, "preparing the task, once") as note:
            self.loaded.program.prepare(self.loaded.base, note)


def _refuse(plan: SweepPlan) -> None:
    """A sweep in which some trial fits nowhere is refused; the space must not hold what no node can."""
    if plan.problems:
        raise PlacementError(dict.fromkeys(plan.problems))
