"""``Sweep``: launch a sweep from a script. The command line does nothing else."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from rlhf_core.errors import ClusterError, PlacementError, StorageError
from rlhf_core.runtime.placement import Node, group_request, with_node_types
from sweeps.claim import claimed
from sweeps.control import Inbox
from sweeps.driver import SweepDriver
from sweeps.history import (
    History,
    check_changes,
    check_same,
    mend,
    read_config,
    read_history,
)
from sweeps.live import LiveView
from sweeps.load import Loaded, load_sweep
from sweeps.outcomes import State
from sweeps.plan import SweepPlan, fit_note, plan_sweep, spill_note, unfit
from sweeps.record import RunDirectory, check_target, settings, storage_root, versions
from sweeps.restore import is_done, restore
from sweeps.results import Results, write_results
from sweeps.services import asked_at_corners
from sweeps.signals import closing, sigterm_interrupts
from sweeps.spaces import centre_note, rejection_note, share_note
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
    def from_directory(
        cls, directory: str | Path, overrides: Mapping[str, Any] | None = None
    ) -> Sweep:
        """The sweep that a run directory holds, to go on with: ``.run(directory, resume=True)``.

        Args:
            directory: What ``run`` was given.
            overrides: More trials, another budget or cluster; nothing that trials share.

        Raises:
            ConfigError: There is none, a newer version wrote it, or what is overridden must stay.
        """
        check_changes(overrides or {})
        return cls(load_sweep(read_config(Path(directory).expanduser())["config"], overrides))

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
        config, loaded = self.loaded.config, self.loaded
        notes = loaded.program.notes(loaded.base, loaded.corners[0], config.search.objective)
        notes += [*loaded.notes, *centre_note(config.search, loaded.space)]
        return [*notes, *share_note(loaded.space, loaded.values)]

    def check(self, out: str | Path) -> None:
        """Refuses what can be seen to fail before anything starts.

        Args:
            out: The run directory.

        Raises:
            ConfigError: The folder is in use or cannot be written, no node can hold a trial, or the study's
                storage cannot be used.
        """
        from sweeps.tuning.cluster import expected_nodes
        from sweeps.tuning.storage import check_storage

        config, directory = self.loaded.config, Path(out).expanduser().absolute()
        expected = expected_nodes(config.cluster)
        if expected is not None:
            _refuse(self.plan(expected))
        check_target(directory)
        check_storage(directory, config.name, config.storage.study)

    def run(
        self, out: str | Path, console: Console | None = None, *, resume: bool = False
    ) -> Results:
        """Runs the sweep to its end.

        Args:
            out: The run directory; must not hold anything yet, unless ``resume``.
            console: Where progress goes.
            resume: Goes on with the sweep in ``out``, whatever ended its driver; begins it where there is none.

        Raises:
            ConfigError: Before Ray starts: the folder is in use or holds another sweep, or no node can hold a
                trial.
            ClusterError: Ray does not start, or is lost.
            StorageError: The run directory can no longer be written.
            Interrupted: After Ctrl-C or SIGTERM, once everything is stopped and recorded.
        """
        console = console or Console(stderr=True)
        directory = Path(out).expanduser().absolute()
        with contextlib.ExitStack() as stack:
            stack.enter_context(sigterm_interrupts())
            before = None
            if resume and (directory / "sweep.json").exists():
                stack.enter_context(claimed(directory))
                before = self._before(directory, console)
            else:
                self.check(directory)
            if before is None or not before.is_done(self.loaded, directory):
                self._prepare(console)
                notes = self._run(directory, before, console, stack)
            else:
                notes = (
                    f"nothing was left to run: all {len(before.history.trials)} trials have ended",
                )
            # Ray left its own handler behind.
            with sigterm_interrupts():
                results = write_results(self.loaded, directory, console)
        return replace(results, notes=(*notes, *results.notes))

    def _before(self, directory: Path, console: Console) -> Before:
        """What is in a directory that this sweep goes on with, mended."""
        document = read_config(directory)
        check_same(settings(self.loaded)["config"], document, directory)
        print_notes(console, mend(directory))
        return Before(document, read_history(directory))

    def _run(
        self, directory: Path, before: Before | None, console: Console, stack: contextlib.ExitStack
    ) -> tuple[str, ...]:
        """Starts Ray and runs the trials; returns what is to be told at the end."""
        from sweeps.tuning import cluster

        with contextlib.ExitStack() as connected:
            with console.status("starting Ray"):
                nodes = connected.enter_context(
                    cluster.running(self.loaded.config.cluster, self._store_gb())
                )
            # Ray took the signal for itself when it started.
            connected.enter_context(sigterm_interrupts())
            driver = self._drive(directory, before, nodes, console, stack)
        self.loaded = driver.loaded
        for problem in driver.problems:
            console.print(f"[red]a plug-in failed and was passed over:[/red] {problem}")
        _raise_what_ended(driver)
        notes = [*_left_open(driver), driver.choice.note(driver.records.values()) or ""]
        notes += rejection_note(driver.study.rejected, len(driver.records))
        return tuple(filter(None, notes))

    def _drive(
        self,
        directory: Path,
        before: Before | None,
        nodes: list[Node],
        console: Console,
        stack: contextlib.ExitStack,
    ) -> SweepDriver:
        """Runs the trials on the connected cluster; ``stack`` then holds the directory of a new sweep.

        After an interruption it also holds off the next one, until all is put away.
        """
        from sweeps.tuning import cluster, runner
        from sweeps.tuning.services import serving
        from sweeps.tuning.study import Study

        config = self.loaded.config
        plan = self.plan(nodes)
        _refuse(plan)
        print_notes(console, filter(None, [spill_note(plan), fit_note(plan)]))
        if before is None:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(claimed(directory))
            check_target(directory)
        record = RunDirectory(directory)
        record.write_sweep(
            self.loaded, [asdict(node) for node in nodes], before.document if before else None
        )
        record.event("began", host=platform.node(), pid=os.getpid(), versions=versions())
        study = Study(
            directory,
            config.name,
            config.search,
            self.loaded.space,
            self.loaded.checker(partial(unfit, self.loaded, plan)),
            config.storage.study,
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
            if before is not None:
                restore(driver, before.history)
            runner.run(driver, checkpoints, view)
            if driver.interrupted:
                stack.enter_context(closing())
            view.refresh(driver, now_or_never=True)
        if driver.broken is None:
            record.write_passed_over(study.rejected)
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


@dataclass(frozen=True)
class Before:
    """A sweep that ran before.

    Attributes:
        document: Its ``sweep.json``.
        history: What its files tell.
    """

    document: Mapping[str, Any]
    history: History

    def is_done(self, loaded: Loaded, directory: Path) -> bool:
        """Whether no trial is to run any more."""
        asked = Inbox(directory, self.history.answered).read()
        return not asked and is_done(loaded, self.history)


def _raise_what_ended(driver: SweepDriver) -> None:
    """Nothing, where the sweep came to its own end."""
    directory = driver.directory.path
    remedy = f"`rlhf-sweep resume {directory}` goes on from there"
    if driver.broken is not None:
        raise StorageError(
            f"{directory}: nothing can be written any more ({driver.broken}); make room, then {remedy}"
        )
    if driver.cluster_lost:
        raise ClusterError(
            f"cluster: all nodes are gone; {directory} holds everything up to then, and {remedy}"
        )
    if driver.crash is not None:
        lines = str(driver.crash).strip().splitlines() or [""]
        raise ClusterError(
            f"Ray Tune ended the sweep: {type(driver.crash).__name__}: {lines[-1]}; {remedy}"
        ) from driver.crash
    if driver.interrupted:
        raise Interrupted(str(directory))


def _left_open(driver: SweepDriver) -> Iterator[str]:
    """Why trials of a sweep that is over have not run to their end."""
    if driver.given_up is not None:
        yield f"no further trial was started: {driver.given_up}"
    paused = [r.trial for r in driver.records.values() if r.state is State.PAUSED]
    if paused:
        directory = driver.directory.path
        yield (
            f"paused: {', '.join(paused)}; `rlhf-sweep resume-trial {directory} {paused[0]}`, then "
            f"`rlhf-sweep resume {directory}` goes on with it"
        )


def _refuse(plan: SweepPlan) -> None:
    """A sweep in which some trial fits nowhere is refused; the space must not hold what no node can."""
    if plan.problems:
        raise PlacementError(dict.fromkeys(plan.problems))
