"""The report: its content, that it needs nothing else, and how it looks in a browser."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_directories import TWO_GOALS

import analysis
from analysis.report import story, tables
from rlhf_core.errors import ConfigError
from sweeps.cli import main

RECORDED = Path(analysis.__file__).parent / "notebooks/data/quickstart"


@pytest.fixture
def recorded(tmp_path):
    """A copy of the recorded quickstart."""
    return shutil.copytree(RECORDED, tmp_path / "quickstart")


def with_two_goals(path: Path) -> Path:
    info = json.loads((path / "sweep.json").read_bytes())
    (path / "sweep.json").write_text(json.dumps(info | {"config": TWO_GOALS}))
    return path


class Page(HTMLParser):
    """Tags that are open, sources and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.sources: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        held = dict(attrs)
        self.sources += [held[k] for k in ("src", "href") if held.get(k) and tag != "a"]
        self.links += [held["href"]] if tag == "a" else []
        self.ids |= {held["id"]} if "id" in held else set()
        if tag not in ("meta", "link", "img"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_the_page_is_whole_and_loads_nothing(recorded, capsys):
    assert main(["report", str(recorded)]) == 0
    assert capsys.readouterr().out.strip() == str(recorded / "report.html")
    text = (recorded / "report.html").read_text("utf-8")
    page = Page(text)
    assert page.stack == []
    assert all(source.startswith("data:") for source in page.sources)
    assert {link.removeprefix("#") for link in page.links} <= page.ids
    assert "url(" not in text
    assert "@import" not in text
    assert text.count("data:image/png;base64,") == 12
    for word in ("What was asked", "What was found", "Leaderboard", "Budget", "reproducibility"):
        assert word in text


def test_five_sentences_of_numbers(recorded):
    said = story.found(analysis.load(recorded))
    assert len(said) == story.SENTENCES
    assert all(re.search(r"\d", sentence) and sentence.endswith(".") for sentence in said)
    assert "11 completed, 1 stopped" in said[0]
    assert "t0001" in said[1]
    assert "256 prompts never trained on" in said[2]
    assert "-0.0488 to 0.67, a gain of 0.718 ± 0.029" in said[2]


@pytest.mark.parametrize(
    ("metric", "reward"),
    [("proxy", "its optimised reward"), ("heldout", "its held-out reward"), (None, "its reward")],
)
def test_the_judgement_names_the_reward_it_is_of(recorded, metric, reward):
    stored = json.loads((recorded / "best.json").read_bytes())
    stored["judgement"]["metric"] = metric
    (recorded / "best.json").write_text(json.dumps(stored))
    said = story.found(analysis.load(recorded))
    assert f"{reward} went from -0.0488 to 0.67" in said[2]


def test_differences_from_the_default(recorded):
    sweep = analysis.load(recorded)
    assert tables.defaults(sweep)["ppo.kl.coef"] == 0.05
    board = tables.leading(sweep)
    row = next(row for row in board.rows if row[1] == "t0000")
    assert row[5] == "cpus_per_gpu 4", "the first trial is the default but for this"
    assert board.rows[0][:2] == ["1", "t0001"]
    assert board.rows[-1][-1].startswith("stopped: median")


def test_failures_by_cause(every_outcome):
    every_outcome.begin("t0010")
    every_outcome.end("t0010", "failed", reason="ValueError: boom")
    rows = tables.failures(analysis.load(every_outcome.path)).rows
    assert rows[0] == ["failed", "ValueError: boom", "2", "-", "t0005, t0010"]
    assert {row[0] for row in rows} == {"failed", "stopped", "diverged", "infeasible", "lost"}


def test_the_budget_and_what_stopping_saved(builder):
    builder.completed("t0000", 1.0)  # 2 iterations, 7 GPU seconds
    builder.begin("t0001")
    builder.report("t0001", 1, eval__heldout=0.1, cost__gpu_seconds=3.0)
    builder.end("t0001", "stopped", 0.1, iteration=1)
    table = tables.bill(analysis.load(builder.path))
    assert table.heads == ["", "trials", "iterations", "GPU-hours"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["all"][:2] == ["2", "3"]
    assert float(rows["all"][2]) == pytest.approx(10 / 3600, rel=0.01)
    assert rows["asked for"][0] == "8"
    assert float(rows["saved by cutting off"][2]) == pytest.approx(3 / 3600, rel=0.01)


def test_the_hacked_trial_of_the_quickstart_is_named(recorded):
    (row,) = tables.hacked(analysis.load(recorded)).rows
    assert row[0] == "t0010"


def test_an_unfinished_sweep_has_a_report_and_names_are_escaped(every_outcome, tmp_path):
    named = {"name": "<script>alert(1)</script>"}
    every_outcome.write("sweep.json", every_outcome.info | named)
    sweep = analysis.load(every_outcome.path)
    (target,) = analysis.write_report(sweep, tmp_path / "out" / "r.html")
    text = target.read_text("utf-8")
    assert Page(text).stack == []
    assert "unfinished: " in text
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert [p.name for p in target.parent.iterdir()] == ["r.html"]


def test_a_sweep_that_has_just_begun_has_a_report(builder):
    text = analysis.report.render(analysis.load(builder.path))
    assert Page(text).stack == []
    assert "No trial has begun" in text


def test_a_sweep_of_another_program_has_no_defaults(builder):
    builder.write("sweep.json", builder.info | {"config": {"base": {"anything": 1}}})
    builder.completed("t0000", 1.0, params={"x": 2})
    sweep = analysis.load(builder.path)
    assert tables.defaults(sweep) == {}
    assert tables.leading(sweep).rows[0][5] == "x 2"


def test_several_sweeps_need_a_name_for_their_report(recorded, capsys):
    assert main(["report", str(recorded), str(recorded)]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.long
def test_several_sweeps_have_one_report(recorded, tmp_path):
    second = shutil.copytree(recorded, tmp_path / "second")
    out = tmp_path / "both.html"
    assert main(["report", str(recorded), str(second), "--out", str(out)]) == 0
    assert "second/t0001" in out.read_text("utf-8")


def test_without_chromium_the_pdf_says_what_to_install(recorded, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="apt-get install chromium"):
        analysis.report.print_pdf(recorded / "report.html")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["recorded", "few", "many", "cluster", "several"])
def test_the_page_in_a_browser(kind, recorded, simulated, cluster, tmp_path):
    from browser import browser

    path = {
        "recorded": lambda: recorded,
        "few": lambda: simulated(3),
        "many": lambda: simulated(500),
        "cluster": lambda: cluster(24),
        "several": lambda: with_two_goals(cluster(24)),
    }
    (page,) = analysis.write_report(analysis.load(path[kind]()), tmp_path / "report.html")
    grounds = set()
    with browser(tmp_path / "profile") as tab:
        for width in (390, 1280):
            for dark in (False, True):
                shape = tab.open(page, width, dark)
                assert shape["width"] <= shape["view"] == width, "no horizontal overflow"
                assert shape["wide"] == 0
                assert len(shape["images"]) >= (9 if kind == "few" else 10)
                assert all(done and w > 0 and h > 0 for done, w, h in shape["images"])
                assert tab.errors() == []
                grounds.add((dark, shape["ground"]))
                picture = tab.picture(tmp_path / f"{kind}_{width}_{dark}.png")
                assert picture.stat().st_size > 50_000
    assert len(grounds) == 2, "a ground of its own for each colour scheme"


@pytest.mark.long
def test_the_pdf(recorded, tmp_path):
    written = analysis.write_report(analysis.load(recorded), tmp_path / "r.html", pdf=True)
    assert [path.name for path in written] == ["r.html", "r.pdf"]
    assert written[1].read_bytes().startswith(b"%PDF")
    assert written[1].stat().st_size > 100_000
