"""Where a study lies: the journal of a run directory, and databases."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from rlhf_core.errors import ConfigError
from search_spaces import Float, Int, Parameter, Space
from sweeps.cli import main
from sweeps.config import SearchConfig
from sweeps.outcomes import Outcome
from sweeps.tuning.journal import Journal
from sweeps.tuning.storage import check_storage
from sweeps.tuning.study import Study

SPACE = Space({"x": Parameter(Float(0.0, 1.0)), "n": Parameter(Int(1, 3))})


def make(folder: Path, storage: str | None = None, name: str = "s", **search: Any) -> Study:
    folder.mkdir(exist_ok=True)
    return Study(folder, name, SearchConfig(**search), SPACE, lambda params: [], storage)


def ask(study: Study) -> tuple[int, dict[str, Any]]:
    asked = study.ask()
    assert asked is not None
    return asked


def lines(folder: Path) -> list[str]:
    return (folder / "study.log").read_text().splitlines()


# Taking up what another driver left


def test_what_is_adopted_is_handed_out_first_and_what_began_is_not(tmp_path: Path) -> None:
    first = make(tmp_path)
    asked = dict(ask(first) for _ in range(4))
    first.tell(1, Outcome.COMPLETED, 0.5, {})
    again = make(tmp_path)
    assert again.open_numbers() == [0, 2, 3]
    again.reopen(0)
    again.reopen(1)
    assert [again.adopt(number) for number in (2, 3, 2)] == [asked[2], asked[3], asked[2]]
    assert [ask(again) for _ in range(2)] == [(2, asked[2]), (3, asked[3])]
    assert ask(again)[0] == 4
    again.tell(0, Outcome.COMPLETED, 0.7, {})
    assert again.open_numbers() == [2, 3, 4]
    for number in (1, 9):
        with pytest.raises(KeyError, match=f"no open trial {number}"):
            again.adopt(number)


def test_a_trial_that_failed_is_run_again_as_another_one(tmp_path: Path) -> None:
    study = make(tmp_path)
    number, params = ask(study)
    study.tell(number, Outcome.FAILED, None, {})
    new = study.again(number)
    assert new == study.again(number) == make(tmp_path).again(number) == 1
    assert make(tmp_path).open_numbers() == []
    study.report(new, 1, 0.5)
    study.tell(new, Outcome.COMPLETED, 0.5, {})
    trial = study._study.trials[new]
    assert (trial.params, trial.value) == (params, 0.5)
    assert study.again(number) == 2


def test_a_trial_can_be_told_by_a_driver_that_did_not_ask_for_it(tmp_path: Path) -> None:
    first = make(tmp_path)
    number, _ = ask(first)
    first.report(number, 1, 0.1)
    again = make(tmp_path)
    # The record of a former driver is played again.
    for iteration in (1, 2, 3):
        again.report(number, iteration, iteration / 10)
    again.tell(number, Outcome.STOPPED, 0.3, {})
    trial = again._study.trials[number]
    assert trial.state is TrialState.PRUNED
    assert trial.intermediate_values == {1: 0.1, 2: 0.2, 3: 0.3}
    assert trial.user_attrs["curve"] == [[1, 0.1], [2, 0.2], [3, 0.3]]
    third = make(tmp_path)
    third.report(number, 4, 0.4)
    third.tell(number, Outcome.COMPLETED, 0.9, {})
    third.tell(77, Outcome.COMPLETED, 0.9, {})
    assert third._study.trials == again._study.trials


def test_points_are_put_in_line_once(tmp_path: Path) -> None:
    points = ({"x": 0.25, "n": 2}, {"x": 0.75}, {"x": 0.25, "n": 2})
    first = make(tmp_path, points=points)
    assert ask(first) == (0, points[0])
    again = make(tmp_path, points=points)
    for _ in range(2):
        again.add_points([{"x": 0.5, "n": 1}], "a command")
    handed = [ask(again)[1] for _ in range(3)]
    assert handed[0]["x"] == 0.75
    assert handed[1:] == [points[2], {"x": 0.5, "n": 1}]
    assert len(again._study.trials) == 4


def test_rejections_are_counted_across_drivers(tmp_path: Path) -> None:
    def check(params: dict[str, Any]) -> list[str]:
        return ["x is too large"] if params["x"] > 0.3 else []

    config = SearchConfig(sampler="random")
    first = Study(tmp_path, "s", config, SPACE, check)
    first.ask()
    first.ask()
    assert first.rejected > 0
    assert Study(tmp_path, "s", config, SPACE, check).rejected == first.rejected
    told = [t for t in first._study.trials if t.state is TrialState.FAIL]
    assert {t.user_attrs["reason"] for t in told} == {"x is too large"}


# The journal


def test_what_a_trial_is_asked_and_told_is_one_write_each_and_asking_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make(tmp_path)
    durable: list[bool] = []
    write = Journal._write

    def counted(self: Journal, lines: list[str], last: bool = False) -> None:
        durable.append(last)
        write(self, lines, last)

    synced: list[int] = []
    monkeypatch.setattr(Journal, "_write", counted)
    monkeypatch.setattr(os, "fsync", synced.append)
    number, _ = ask(study)
    study.report(number, 1, 0.4)
    study.tell(number, Outcome.COMPLETED, 0.5, {})
    assert durable == [True, False, False]
    assert len(synced) == 1


def test_the_journal_is_one_that_optuna_reads_and_writes(tmp_path: Path) -> None:
    study = make(tmp_path)
    for value in (0.1, 0.2):
        study.tell(ask(study)[0], Outcome.COMPLETED, value, {})
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    (name,) = optuna.get_all_study_names(storage)
    other = optuna.load_study(study_name=name, storage=storage)
    assert other.trials == study._study.trials
    # Somebody writes a note between two of our trials, as a dashboard does.
    other.set_user_attr("note", "looks good")
    study.tell(ask(study)[0], Outcome.COMPLETED, 0.3, {})
    assert study._study.user_attrs["note"] == "looks good"
    assert other.trials == study._study.trials
    assert [trial.value for trial in other.trials] == [0.1, 0.2, 0.3]


def test_a_torn_last_line_is_cut_before_anything_is_appended(tmp_path: Path) -> None:
    study = make(tmp_path)
    study.tell(ask(study)[0], Outcome.COMPLETED, 0.5, {})
    whole = lines(tmp_path)
    for torn in ('{"op_code":4,"worker_id":"x', "y" * 200_000):
        with (tmp_path / "study.log").open("a") as file:
            file.write(torn)
        again = make(tmp_path)
        assert again._study.trials[0].value == 0.5
        assert lines(tmp_path)[: len(whole)] == whole
        again.tell(ask(again)[0], Outcome.FAILED, None, {})
        whole = lines(tmp_path)
        assert all(json.loads(line) for line in whole)
    assert len(make(tmp_path)._study.trials) == 3
    (tmp_path / "study.log").write_text("torn from the start")
    assert make(tmp_path)._study.trials == []


def test_a_write_that_fails_leaves_whole_lines_and_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    study = make(tmp_path)
    number, _ = ask(study)
    whole = lines(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        ask(study)
    monkeypatch.undo()
    with pytest.raises(OSError, match="No space"):
        study.ask()
    assert lines(tmp_path) == whole
    again = make(tmp_path)
    assert again.open_numbers() == [number]


def _asks(folder: Path) -> None:
    journal = Journal(folder / "study.log")
    with journal.together(True):
        journal.append_logs([{"op_code": 0}])
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long
def test_a_driver_killed_while_it_asks_leaves_neither_a_trial_nor_a_lock(tmp_path: Path) -> None:
    study = make(tmp_path)
    ask(study)
    whole = lines(tmp_path)
    process = multiprocessing.get_context("spawn").Process(target=_asks, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert lines(tmp_path) == whole
    again = make(tmp_path)
    # The one before is whole, and waits for whoever knows it.
    assert again.open_numbers() == [0]
    assert ask(again)[0] == 1


# Databases


def test_a_database_keeps_a_study_that_another_directory_cannot_take(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    first = make(tmp_path / "a", url)
    asked = [ask(first) for _ in range(2)]
    first.tell(0, Outcome.COMPLETED, 0.5, {"kl/response": 1.0})
    assert not (tmp_path / "a/study.log").exists()
    again = make(tmp_path / "a", url)
    assert again.open_numbers() == [1]
    assert again.adopt(1) == asked[1][1]
    assert ask(again) == asked[1]
    (tmp_path / "b").mkdir()
    for refused in (
        lambda: make(tmp_path / "b", url),
        lambda: check_storage(tmp_path / "b", "s", url),
    ):
        with pytest.raises(ConfigError, match="already holds a study 's' that is not this") as info:
            refused()
        assert len(info.value.problems) == 1
    other = make(tmp_path / "b", url, name="other")
    assert ask(other)[0] == 0
    check_storage(tmp_path / "a", "s", url)
    assert sorted(optuna.get_all_study_names(url)) == ["other", "s"]


def test_the_environment_is_read_into_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIES", str(tmp_path))
    ask(make(tmp_path / "a", "sqlite:///$STUDIES/x.db"))
    assert (tmp_path / "x.db").exists()


UNREACHABLE = {
    "sqlite:////no/such/folder/x.db": "unable to open database file",
    "postgresql://joe:secret@127.0.0.1:1/studies": "",
    "redis://localhost": "dialect",
    "nonsense": "Could not parse",
}


@pytest.mark.parametrize("url", UNREACHABLE)
def test_a_storage_that_cannot_be_used_is_one_line_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    out = tmp_path / "run"
    code = main(["run", "quickstart", "--out", str(out), "--set", f"storage.study={url}"])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert "storage.study" in line
    assert UNREACHABLE[url] in line
    assert "secret" not in line
    assert not out.exists()


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[str]:
    """URL of a PostgreSQL server of its own."""
    if not shutil.which("initdb") or not shutil.which("postgres"):
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg")
    # The server refuses to run as root.
    user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    user = user if os.geteuid() == 0 else []
    data = Path("/tmp") / f"rlhf-pg-{os.getpid()}"
    data.mkdir(mode=0o700)
    if user:
        shutil.chown(data, "nobody", "nogroup")
    port = 20_000 + os.getpid() % 10_000
    try:
        initdb = [*user, "initdb", "-D", str(data / "db"), "-A", "trust", "-U", "tuner"]
        subprocess.run(initdb, check=True, capture_output=True, cwd="/tmp")
        options = ["-D", str(data / "db"), "-p", str(port), "-k", str(data), "-F"]
        server = subprocess.Popen([*user, "postgres", *options], cwd="/tmp", stderr=subprocess.PIPE)
        try:
            _until_it_answers(port)
            yield f"postgresql://tuner@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _until_it_answers(port: int) -> None:
    import psycopg

    for _ in range(300):
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=tuner dbname=postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise TimeoutError("PostgreSQL does not answer")


@pytest.mark.long
def test_a_study_in_postgresql_goes_on_as_one_in_a_journal(tmp_path: Path, postgres: str) -> None:
    asked: dict[str, list[Any]] = {"journal": [], "postgres": []}
    for _ in range(2):
        for name, url in (("journal", None), ("postgres", postgres)):
            study = make(tmp_path / name, url, startup_trials=3)
            for _ in range(6):
                number, params = ask(study)
                study.report(number, 1, params["x"])
                study.tell(number, Outcome.COMPLETED, params["x"], {})
                asked[name].append((number, params))
    assert asked["journal"] == asked["postgres"]


# optuna-dashboard


@pytest.mark.long
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_optuna_dashboard_shows_the_study(tmp_path: Path, kind: str) -> None:
    url = None if kind == "journal" else f"sqlite:///{tmp_path}/s.db"
    study = make(tmp_path, url, constraints=("kl/response <= 10",))
    outcomes = (Outcome.COMPLETED, Outcome.STOPPED, Outcome.DIVERGED, Outcome.FAILED)
    for outcome in outcomes:
        number, params = ask(study)
        study.report(number, 1, params["x"])
        study.tell(number, outcome, params["x"], {"kl/response": 3.0})
    shown = _shown(url or str(tmp_path / "study.log"))
    assert [s["study_name"] for s in shown["studies"]] == ["s"]
    detail = shown["detail"]
    assert [t["state"] for t in detail["trials"]] == ["Complete", "Pruned", "Pruned", "Fail"]
    told = [{a["key"]: a["value"] for a in t["user_attrs"]}["outcome"] for t in detail["trials"]]
    assert told == [str(outcome) for outcome in outcomes]
    assert detail["objective_names"] == ["eval/heldout"]


def _shown(storage: str) -> dict[str, Any]:
    """What the real dashboard serves of a storage."""
    port = 30_000 + os.getpid() % 10_000
    command = [str(Path(sys.executable).parent / "optuna-dashboard"), storage]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)], stderr=subprocess.DEVNULL
    )

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", timeout=10) as answer:
            return json.loads(answer.read())

    try:
        for _ in range(600):
            assert server.poll() is None
            try:
                studies = get("studies")["study_summaries"]
                break
            except OSError:
                time.sleep(0.1)
        return {"studies": studies, "detail": get(f"studies/{studies[0]['study_id']}?after=0")}
    finally:
        server.terminate()
        server.wait(10)
