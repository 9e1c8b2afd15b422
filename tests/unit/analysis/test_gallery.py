"""Every plot of the gallery, with few trials, with many, and with none; and what its data say."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import image
from run_directories import TWO_GOALS, Builder, simulate, simulate_cluster

import analysis
from analysis import plots
from analysis.plots import GALLERY, style

_DPI = 60
EXHIBITS = pytest.mark.parametrize("exhibit", GALLERY, ids=lambda e: e.name)


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """Sweeps of 3 and of 150 trials: with one objective on one GPU, with two on two nodes."""
    made = {}
    for kind, make, config in (
        ("simulated", simulate, {}),
        ("cluster", simulate_cluster, TWO_GOALS),
    ):
        for count in (3, 150):
            path = tmp_path_factory.mktemp(kind) / str(count)
            builder = Builder(path, trials=count, config=config)
            make(builder, count)
            made[kind, count] = analysis.load(builder.path)
    return made


@EXHIBITS
@pytest.mark.parametrize("count", [3, 150])
def test_every_plot_draws_few_and_many(exhibit, count, sweeps, tmp_path):
    drawn = 0
    for kind in ("simulated", "cluster"):
        figure = exhibit.plot(sweeps[kind, count])
        path = tmp_path / f"{kind}.png"
        figure.savefig(path, dpi=_DPI)
        drawn += bool(figure.axes)
        if figure.axes:
            pixels = image.imread(path)
            assert pixels.shape[1] == style.WIDTH * _DPI, "nothing outgrows the common width"
            assert pixels[..., :3].std() > 0.02
            texts = [
                axes.get_xlabel() + axes.get_ylabel() + axes.get_title("left")
                for axes in figure.axes
            ]
            assert any(texts) or exhibit.name == "parallel"
    # Three trials are too few for importance and a volume, and those on two nodes have one ratio.
    assert drawn or (count == 3 and exhibit.name in ("importance", "ratio", "volume"))


@EXHIBITS
def test_every_plot_says_why_there_is_nothing(exhibit, builder, tmp_path):
    figure = exhibit.plot(analysis.load(builder.path))
    assert not figure.axes
    assert figure.texts[0].get_text()


@EXHIBITS
@pytest.mark.parametrize("config", [{}, TWO_GOALS], ids=["one", "two"])
def test_every_plot_takes_every_outcome(exhibit, config, every_outcome, tmp_path):
    every_outcome.write("sweep.json", every_outcome.info | {"config": config})
    for _, view in exhibit.views(analysis.load(every_outcome.path)):
        analysis.save(exhibit.plot(view), tmp_path / "x.png")


def test_the_gallery_is_what_the_package_offers():
    named = {f"plot_{exhibit.name}" for exhibit in GALLERY}
    assert named == {name for name in analysis.__all__ if name.startswith("plot_")}
    assert all(getattr(analysis, f"plot_{e.name}") is e.plot for e in GALLERY)


def test_bars_of_the_timeline_never_overlap_and_account_for_all(sweeps):
    data = plots.timeline_data(sweeps["cluster", 150])
    assert data.lanes == [f"node {n} GPU {g}" for n in range(2) for g in range(4)]
    for _, lane in data.bars.groupby("lane"):
        edges = [(b, s) for b, s in zip(lane["begin"], lane["share"], strict=True)]
        edges += [(e, -s) for e, s in zip(lane["end"], lane["share"], strict=True)]
        load = np.cumsum([share for _, share in sorted(edges)])
        assert load.max() <= 1 + 1e-6
    held = ((data.bars["end"] - data.bars["begin"]) * data.bars["share"]).sum()
    assert data.idle == pytest.approx(1 - held / (8 * data.bars["end"].max()))
    assert 0 < data.idle < 0.5
    halves = data.bars[data.bars["share"] == 0.5]
    assert len(halves) == 2 * 150, "two rollout workers share a GPU of node 1"


def test_idle_time_by_hand(builder):
    nodes = [{"name": "a", "id": "n1", "gpus": 2}]
    builder.write("sweep.json", builder.info | {"trials": 1, "cluster": {"nodes": nodes}})
    builder.begin("t0000")  # queued, placed and started one second apart
    builder.end("t0000", "completed", 1.0)
    data = plots.timeline_data(analysis.load(builder.path))
    assert data.bars[["begin", "end", "lane"]].to_numpy().tolist() == [[1.0, 3.0, 0.0]]
    assert data.idle == pytest.approx(1 - 2 / (3 * 2))


def test_a_trial_without_gpus_has_a_place(builder):
    builder.begin("t0000")
    bundle = {"index": 0, "cpus": 1, "gpus": 0, "node": "n"}
    builder.write("trials/t0000/placement.json", {"bundles": [bundle], "workers": []})
    builder.end("t0000", "completed", 1.0)
    assert plots.timeline_data(analysis.load(builder.path)).lanes == ["place 0"]


def test_costs_add_up(sweeps):
    sweep = sweeps["cluster", 3]
    data = plots.cost_data(sweep)
    assert data.phases["seconds"].sum() == pytest.approx(data.seconds)
    assert data.phases.loc["rest", "seconds"] == pytest.approx(0.08 * data.seconds)
    assert data.gpu_hours == pytest.approx(sweep.trials["final.cost/gpu_seconds"].sum() / 3600)
    roles = data.roles.sum(axis=1)
    assert roles["rollout"] == pytest.approx(2 * roles["learner"]), "two rollout workers"
    assert roles["learner"] == pytest.approx(data.seconds)


def test_survival_counts(every_outcome):
    data = plots.survival_data(analysis.load(every_outcome.path))
    assert data.alive["completed"].tolist() == [2, 2, 2, 0]
    assert data.alive["stopped"].tolist() == [1, 1, 0, 0]
    assert data.alive["running"].tolist() == [1, 1, 1, 1]


def test_fronts_grow_with_the_budget(sweeps):
    fronts = plots.front_data(sweeps["simulated", 150]).fronts
    assert list(fronts) == [0.25, 0.5, 1.0]
    for smaller, larger in ((0.25, 0.5), (0.5, 1.0)):
        for own in fronts[smaller][["value", "kl"]].to_numpy():
            better = fronts[larger][["value", "kl"]].to_numpy()
            assert ((better[:, 0] >= own[0]) & (better[:, 1] <= own[1])).any()


def test_ratio_is_that_of_the_bundles_with_a_gpu(sweeps):
    sweep = sweeps["cluster", 3]
    wanted = sweep.trials["params.resources.cpus_per_gpu"].astype("float64")
    assert plots.ratio_data(sweep).points["ratio"].tolist() == wanted.tolist()


def test_staleness_against_reward_and_speed(sweeps):
    data = plots.staleness_data(sweeps["cluster", 150])
    assert list(data.causes) == ["interval", "staleness"]
    assert data.points["staleness"].tolist() == ((data.points["interval"] - 1) / 2).tolist()
    assert (data.points["rate"] > 0).all()


def test_imbalance_by_trial(sweeps):
    data = plots.imbalance_data(sweeps["cluster", 3])
    assert data.trials["nodes"].tolist() == [2, 2, 2]
    assert data.trials["median"].is_monotonic_decreasing
    assert len(data.points) == 3 * 12, "the evaluation before the first update does not count"


def test_seeds_of_finalists(sweeps):
    data = plots.seed_data(sweeps["cluster", 150])
    assert data.noise is not None
    assert data.table["seeds"].min() >= 3
    assert data.table["iqm"].is_monotonic_decreasing


def test_the_contour_takes_the_two_that_matter_or_those_asked_for(sweeps):
    sweep = sweeps["simulated", 150]
    assert plots.contour_data(sweep).axes[0].key == "optim.policy.lr"
    asked = plots.contour_data(sweep, "ppo.clip_range_low", "sync.interval")
    assert [axis.key for axis in asked.axes] == ["ppo.clip_range_low", "sync.interval"]


def test_the_course_is_the_best_of_what_may_be_chosen(sweeps):
    data = plots.course_data(sweeps["simulated", 150])
    assert data.points["best"].dropna().is_monotonic_increasing
    assert data.points["best"].iloc[-1] == pytest.approx(data.points["random"].iloc[-1])
