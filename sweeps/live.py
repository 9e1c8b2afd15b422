"""What is shown while a sweep runs: a table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from dataclasses import asdict
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeps.driver import SweepDriver
from sweeps.outcomes import Outcome, State
from sweeps.picture import draw_trial
from sweeps.trial_record import TrialRecord

SHOWN, SHOWN_WAITING = 12, 3


class LiveView:
    """Progress of a sweep.

    Args:
        console: Where to draw.
        iterations: Budget of a trial, for progress and time left.
        every_s: Seconds between lines where the console is no terminal.
    """

    def __init__(self, console: Console, iterations: int | None, every_s: float) -> None:
        self.console, self.iterations, self.every_s = console, iterations, every_s
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._last = 0.0
        self._drawn = False

    def __enter__(self) -> LiveView:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def refresh(self, driver: SweepDriver, *, now_or_never: bool = False) -> None:
        """Draws the state of the sweep, at most as often as is useful, or once more at the end."""
        self._draw_first(driver)
        now = time.monotonic()
        pause = 0.5 if self.console.is_terminal else self.every_s
        if now - self._last < pause and not now_or_never:
            return
        self._last = now
        if self.console.is_terminal:
            table = trials_table(driver, self.iterations)
            self._live.update(Group(table, self.headline(driver), *waiting_lines(driver, now)))
        else:
            for line in (self.headline(driver), *waiting_lines(driver, now)):
                self.console.print(line, soft_wrap=True)

    def _draw_first(self, driver: SweepDriver) -> None:
        """A rehearsal shows once where the roles of its first trial went."""
        if self._drawn or driver.first_placement is None:
            return
        self._drawn = True
        trial, record = driver.first_placement
        if driver.loaded.config.cluster.rehearse is None or record.get("layout") == "fused":
            return
        lines = draw_trial(trial, record, [asdict(node) for node in driver.nodes])
        self.console.print(Text("\n".join([*lines, ""])), soft_wrap=True)

    def headline(self, driver: SweepDriver) -> Text:
        """One line: how far, how fast, how long yet, the best so far."""
        parts = [_counts(driver)]
        speed = sum(r.finals.get("rollout/tokens_per_second", 0.0) for r in driver.live)
        if speed:
            parts.append(f"sampling {speed:,.0f} tokens/s")
        elapsed = time.time() - driver.started
        left = time_left(driver, self.iterations, time.time())
        parts.append(f"{clock(elapsed)} gone" + (f", about {clock(left)} left" if left else ""))
        best = best_record(driver)
        if best is not None:
            parts.append(
                f"best {driver.loaded.config.search.objective} {best.value:.3f} ({best.trial})"
            )
        return Text("; ".join(parts))


def waiting_lines(driver: SweepDriver, now: float) -> list[Text]:
    """Which trials wait since when and for what; ``now`` is monotonic."""
    shown = sorted(driver.waiting.shown.items())
    lines = [
        Text(f"{trial} has waited {clock(now - wait.since)} for {wait.missing}")
        for trial, wait in shown[:SHOWN_WAITING]
    ]
    hidden = len(shown) - len(lines)
    return [*lines, Text(f"and {hidden} more")] if hidden else lines


def best_record(driver: SweepDriver) -> TrialRecord | None:
    """The trial with the best last objective so far, diverged ones left out."""
    sign = 1 if driver.loaded.config.search.direction == "maximize" else -1
    candidates = [
        r
        for r in driver.records.values()
        if r.value is not None
        and r.of is None
        and r.outcome in (None, Outcome.COMPLETED, Outcome.STOPPED)
    ]
    return max(candidates, key=lambda r: sign * (r.value or 0.0), default=None)


def _counts(driver: SweepDriver) -> str:
    every = list(driver.records.values())
    records, tests = ([r for r in every if (r.of is not None) is test] for test in (False, True))
    done = sum(record.state is State.ENDED for record in records)
    cut = sum(record.state is State.INTERRUPTED for record in records)
    text = f"{done}/{driver.loaded.config.search.trials} trials done"
    text += f", {cut} interrupted" if cut else ""
    paused = sum(record.state is State.PAUSED for record in records)
    text += f", {paused} paused" if paused else ""
    if tests:
        text += f", {sum(r.state is State.ENDED for r in tests)}/{len(tests)} test runs"
    waiting = len(driver.waiting.shown)
    running = len(driver.live) - waiting
    text += f", {running} running" if driver.live or not cut else ""
    return text + (f", {waiting} waiting" if waiting else "")


def time_left(driver: SweepDriver, iterations: int | None, now: float) -> float | None:
    """Seconds to the end, or None before a trial has run whole, or nearly half of it.

    What is left takes as long as the trials so far did, at the width at which they run.
    """
    typical = _typical(driver, iterations, now)
    if typical is None:
        return None
    live = driver.live
    rest = [max(0.0, typical - (now - (r.began or now))) for r in live]
    waiting = 0.0 if driver.exhausted else driver.choice.waiting(driver.records.values())
    width = max(1, min(driver.max_concurrent, len(live) + waiting))
    return max([(sum(rest) + waiting * typical) / width, *rest])


def _typical(driver: SweepDriver, iterations: int | None, now: float) -> float | None:
    """Mean seconds of the trials that ended well; before that, of running ones past half their length."""
    records = [r for r in driver.records.values() if r.began is not None]
    whole = [
        r.times["ended"] - r.times["placed"]
        for r in records
        if r.outcome in (Outcome.COMPLETED, Outcome.STOPPED) and "ended" in r.times
    ]
    partly = [
        (now - r.times["placed"]) * iterations / r.iteration
        for r in records
        if iterations and not r.ended and r.iteration >= iterations / 2
    ]
    found = whole or partly
    return fmean(found) if found else None


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def trials_table(driver: SweepDriver, iterations: int | None) -> Table:
    """Running trials first, then the latest that ended."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("trial", "state"):
        table.add_column(name, no_wrap=True)
    objective = driver.loaded.config.search.objective
    for name in ("iteration", objective, *_SHOWN):
        table.add_column(name, justify="right", no_wrap=True)
    live = driver.live
    ended = [r for r in driver.records.values() if r.ended]
    for record in [*live, *reversed(ended)][:SHOWN]:
        table.add_row(*_row(record, iterations))
    hidden = len(driver.records) - min(len(driver.records), SHOWN)
    if hidden:
        table.add_row(f"+{hidden}", "earlier")
    return table


_SHOWN = {
    "proxy": ("reward/proxy", ".2f"),
    "KL": ("kl/response", ".2f"),
    "tokens/s": ("rollout/tokens_per_second", ",.0f"),
}


def _row(record: TrialRecord, iterations: int | None) -> list[str]:
    def number(value: float | None, form: str) -> str:
        return format(value, form) if value is not None else "-"

    state = str(record.outcome) if record.ended and record.outcome else str(record.state)
    progress = f"{record.iteration}/{iterations}" if iterations else str(record.iteration)
    shown = [number(record.finals.get(name), form) for name, form in _SHOWN.values()]
    return [record.trial, state, progress, number(record.value, ".3f"), *shown]
