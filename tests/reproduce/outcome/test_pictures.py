"""What is drawn is what lies in the run folders: lines, bands, panels, surfaces, partitions, the paper's points."""

import base64
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lib.command import run
from lib.generated import write_images
from lib.job_folders import finished, under_way, waiting
from PIL import Image

from fl_lightning.datamodules import CIFAR10
from fl_lightning.report.drawing.plots import Lines, Mark, Panels
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.experiments.papers import find
from fl_lightning.reproduce.jobs import Job
from fl_lightning.reproduce.outcome.pictures import (
    SIMILARITIES,
    Curve,
    _over_labels,
    in_panels,
    make_curves,
    picture,
    sort_by_rank,
)

A = Cell({"method": "A"}, ())


def table(*rows: dict[str, Any]) -> Experiment:
    """An experiment for which the paper prints these numbers."""
    return Experiment("x", "X", "", "", rows, "", ("top1",))


def curve(values: Sequence[float], measure: str = "top1", **labels: Any) -> Curve:
    points = pd.DataFrame({"mean": values}, index=range(1, len(values) + 1))
    return Curve(labels, measure, points.assign(low=points["mean"] - 1, high=points["mean"] + 1, seeds=1))


def plots(found: Sequence[Curve], panels: Sequence[str], measures: Sequence[str] = ("top1",)) -> Panels:
    drawn = in_panels(found, {measure: measure for measure in measures}, panels, table())
    assert isinstance(drawn, Panels)
    return drawn


def save(job: Job, name: str, **arrays: Any) -> None:
    """Write arrays into a run's folder."""
    folder = job.run.folder / "arrays"
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)


def means(plot: Any) -> dict[str, list[float]]:
    """The means of each line."""
    return {line.method: line.points["mean"].tolist() for line in plot.lines}


class TestCurves:
    def test_mean_and_interval_over_the_seeds(self, tmp_path: Path) -> None:
        """Seeds 1 and 2 have 0.1, 0.3 and 0.2, 0.6: in per cent 15 ± 5 t, then 45 ± 15 t, t(0.975, 1) = 12.7062."""
        runs = [finished(tmp_path, seed, top1=values) for seed, values in ((1, [0.1, 0.3]), (2, [0.2, 0.6]))]
        (found,) = make_curves(["top1"], [(A, job) for job in runs])
        assert found.points["mean"].to_dict() == pytest.approx({1: 15, 2: 45})
        assert found.points["seeds"].tolist() == [2, 2]
        plot = in_panels([found], {"top1": "accuracy"}, [], table())
        assert isinstance(plot, Lines)
        (line,) = plot.lines
        assert line.points["low"].tolist() == pytest.approx([15 - 63.531, 45 - 190.593], abs=1e-2)
        assert line.points["high"].tolist() == pytest.approx([15 + 63.531, 45 + 190.593], abs=1e-2)
        assert (plot.x.title, plot.y.title) == ("round", "accuracy")

    def test_only_what_is_finished_and_logged(self, tmp_path: Path) -> None:
        """A run under way, a metric that is missing, a round without a value; a cell named twice is one."""
        gaps = Cell({"method": "B"}, ()), finished(tmp_path / "gaps", top1=[0.5, math.nan, 0.7])
        (found,) = make_curves(["top1", "val/loss"], [(A, under_way(tmp_path, top1=[0.5])), gaps, gaps])
        assert (found.labels, found.measure) == ({"method": "B"}, "top1")
        assert found.points["mean"].to_dict() == {1: 50, 3: 70}
        assert found.points["seeds"].tolist() == [1, 1]

    def test_similarities_are_sorted_and_averaged_by_rank(self, tmp_path: Path) -> None:
        """0.3, -0.5, 0.1 and 0.2, 0, -0.1: by rank (-0.5, -0.1), (0.1, 0), (0.3, 0.2)."""
        one = [[1, 0.3, -0.5], [0.3, 1, 0.1], [-0.5, 0.1, 1]]
        two = [[1, 0.2, 0.0], [0.2, 1, -0.1], [0.0, -0.1, 1]]
        runs = [finished(tmp_path, seed, cosines) for seed, cosines in ((1, one), (2, two))]
        (found,) = make_curves([SIMILARITIES], [(A, each) for each in runs])
        assert found.points["mean"].to_dict() == pytest.approx({1: -0.3, 2: 0.05, 3: 0.25})
        assert found.points["low"][1] == pytest.approx(-0.3 - 2.54124, abs=1e-4)  # 0.2 t(0.975, 1)
        assert in_panels([found], {SIMILARITIES: "cosine"}, [], table()).x.title.startswith("pair of clients")
        assert make_curves([SIMILARITIES], [(A, finished(tmp_path / "none", top1=[0.1]))]) == []

    def test_similarities_of_fewer_pairs_are_spread_over_all_ranks(self) -> None:
        """Three values and two, 0.4 and 0.0: the middle of these is 0.2."""
        ranked = sort_by_rank([np.array([0.5, -0.5, 0.1]), np.array([0.4, 0.0])])
        assert ranked.to_dict("list") == {0: [-0.5, 0.1, 0.5], 1: [0.0, 0.2, 0.4]}


class TestPanels:
    def test_axes_part_panels_or_lines(self) -> None:
        """Two data sets across; in each A and B. The axis that all share is not named."""
        cells = enumerate(["XA", "XB", "YB", "YA"])
        drawn = plots([curve([n], dataset=each[0], alpha=1, method=each[1]) for n, each in cells], ["dataset"])
        assert {title: means(plot) for title, plot in drawn.panels.items()} == {
            "X": {"A": [0], "B": [1]},
            "Y": {"B": [2], "A": [3]},
        }
        assert drawn.shared

    def test_a_curve_that_lacks_an_axis_is_in_all_its_panels(self) -> None:
        found = [curve([1], proxy=proxy, method="B") for proxy in ("even", "odd")] + [curve([2], method="A")]
        assert [means(plot) for plot in plots(found, ["proxy"]).panels.values()] == [{"B": [1], "A": [2]}] * 2

    def test_the_last_axis_is_the_fastest(self) -> None:
        """Whatever the order of the cells; each axis' labels in the order in which they come."""
        found = [curve([1], a=a, b=b) for b in ("late", "early") for a in (2, 1)]
        assert list(plots(found, ["a", "b"]).panels) == ["a 2, late", "a 2, early", "a 1, late", "a 1, early"]

    def test_each_measure_has_its_own(self) -> None:
        found = [curve([1], measure, size=size) for measure in ("top1", "val/loss") for size in (5, 10)]
        drawn = plots(found, ["size"], ["top1", "val/loss"])
        assert [*drawn.panels] == ["top1, size 5", "top1, size 10", "val/loss, size 5", "val/loss, size 10"]
        assert drawn.columns == 2
        alone = plots(found[::2], [], ["top1", "val/loss"]).panels
        assert {title: means(plot) for title, plot in alone.items()} == {
            "top1": {"ours": [1]},
            "val/loss": {"ours": [1]},
        }

    @pytest.mark.parametrize(("measure", "percent"), [("val/top1", True), ("top1", False), ("val/loss", False)])
    def test_shares_are_written_in_per_cent(self, measure: str, percent: bool) -> None:
        """Not twice: top1 is in per cent; and not a loss."""
        assert in_panels([curve([1], measure=measure)], {measure: ""}, [], table()).y.percent == percent

    def test_numbers_are_named_and_infinity_is_iid(self) -> None:
        found = [curve([1], **{"data.partition.alpha": alpha, "gamma": 0.5}) for alpha in (0.1, math.inf)]
        assert [*means(in_panels(found, {"top1": ""}, [], table()))] == ["alpha 0.1", "IID"]
        assert [*plots(found, ["data.partition.alpha"]).panels] == ["alpha 0.1", "IID"]

    @pytest.mark.parametrize(("labels", "columns"), [((3, 3), 3), ((1, 4), 0), ((2, 5), 5), ((2, 7), 0)])
    def test_columns(self, labels: tuple[int, int], columns: int) -> None:
        """A row has the labels of the last axis, unless that would be the only one or long."""
        found = [curve([1], a=f"a{a}", b=f"b{b}") for a in range(labels[0]) for b in range(labels[1])]
        assert plots(found, ["a", "b"]).columns == columns


def test_marks_are_the_papers_numbers() -> None:
    """At the last round, or at the rounds that the table names: 1 and 2 of a run of 3, 100 is beyond.

    The loss is no measure of the table, C no method of it; B has no number on IID data.
    """
    rows = [{"method": "A", "alpha": 0.1, "top1": 50.0}, {"method": "A", "alpha": math.inf, "top1": 90.0}]
    rows.append({"method": "B", "alpha": 0.1, "top1": 60.0})
    labels = [{"alpha": alpha, "method": method} for alpha in (0.1, math.inf) for method in "ABC"]
    found = [curve([1, 2, 3], measure, **each) for measure in ("top1", "val/loss") for each in labels]
    drawn = in_panels(found, {"top1": "accuracy", "val/loss": "loss"}, ["alpha"], table(*rows))
    assert isinstance(drawn, Panels)
    marks = [Mark("A", 3, 50.0, "paper"), Mark("B", 3, 60.0, "paper")], [Mark("A", 3, 90.0, "paper")], [], []
    assert [list(plot.marks) for plot in drawn.panels.values()] == list(marks)
    named = table(*({"method": "A", "round": round, "top1": 10.0 * round} for round in (1, 2, 100)))
    plot = in_panels([curve([7, 8, 9], method="A")], {"top1": ""}, [], named)
    assert list(plot.marks) == [Mark("ours", 1, 10.0, "paper"), Mark("ours", 2, 20.0, "paper")]


class TestPicture:
    @pytest.mark.parametrize("axis", ["method", "trainer.callbacks"])
    def test_a_table_gets_curves(self, axis: str, tmp_path: Path) -> None:
        """A line a method, or chain of callbacks, in panels by what else there is more than one of."""
        cells = [Cell({axis: method, "alpha": alpha, "gamma": 1}, ()) for method in "AB" for alpha in (0.1, 1)]
        pairs = [(cell, finished(tmp_path / str(n), top1=[0.1, 0.2])) for n, cell in enumerate(cells)]
        path = picture(table({axis: "A", "alpha": 1, "top1": 25.0}), pairs, tmp_path)
        assert path == tmp_path / "curves.png"
        assert sorted(each.suffix for each in tmp_path.glob("curves.*")) == [".csv", ".pdf", ".png", ".svg"]
        assert Image.open(path).width == pytest.approx(6.75 * 150, abs=1)  # both columns of a paper, for the screen
        drawn = pd.read_csv(tmp_path / "curves.csv", keep_default_na=False)
        pairs_drawn = drawn[["panel", "method"]].drop_duplicates().to_numpy().tolist()
        assert pairs_drawn == [[f"alpha {alpha}", method] for alpha in ("0.1", "1") for method in "AB"]
        mine = drawn[(drawn["panel"] == "alpha 1") & (drawn["method"] == "A")]
        assert mine[["round", "mean", "mark"]].to_numpy().tolist() == [[1, 10, ""], [2, 20, ""], [2, 25, "paper"]]

    def test_a_figure_gets_its_own(self, tmp_path: Path) -> None:
        (figure,) = find("fedmgc/fig-3")
        pairs = [(cell, finished(tmp_path / str(n), top1=[0.1])) for n, cell in enumerate(figure.cells)]
        assert picture(figure, pairs, tmp_path) == tmp_path / "figure.png"
        methods = ["FedMGC", "FedAvg", "FedProx", "SCAFFOLD", "FedNova"]
        assert pd.read_csv(tmp_path / "figure.csv")["method"].tolist() == methods

    def test_a_surface_of_each_method(self, tmp_path: Path) -> None:
        """Two methods have one after their last round, the third; (1, 2) of it lies at steps -0.5 and 1.

        The lowest loss is the first.
        """
        (figure,), pairs = find("fedgam/fig-4"), []
        for n, cell in enumerate(figure.cells[:3]):
            job = finished(tmp_path / str(n), top1=[0.1, 0.2, 0.3])
            pairs.append((cell, job))
            if n < 2:
                loss = 10.0 * n + np.arange(1.0, 10.0).reshape(3, 3)
                save(job, "surface_3", steps=[-0.5, 0, 1], loss=loss)
        assert picture(figure, pairs[2:], tmp_path) is None
        assert picture(figure, pairs, tmp_path) == tmp_path / "figure.png"
        drawn = pd.read_csv(tmp_path / "figure.csv")
        grids = drawn.dropna(subset="loss").set_index(["panel", "d1", "d2"])["loss"]
        assert len(grids) == 18
        assert (grids["FedAvg: 1", -0.5, 1.0], grids["FedSAM: 11", -0.5, 1.0]) == (3.0, 13.0)
        dots = drawn.dropna(subset="lowest in round")[["lowest in round", "d1", "d2"]]
        assert dots.to_numpy().tolist() == [[3, -0.5, -0.5]] * 2

    def test_the_plane_of_weights_with_its_best_points(self, tmp_path: Path) -> None:
        """Of the paper's round 10 of 100, here round 1 of 10. Client 0 alone lies at √(2/3), client 2 at -1/√2.

        Of the weights at steps of 1 only those in the middle and, (1.15, -0.07, -0.07), at (1, 0) are not below -0.1.
        """
        (figure,) = find("fedlaw/fig-12")
        figure = dataclasses.replace(figure, pace=0.1)
        best = {"surface/weight/0": [1.0, 0.0], "surface/weight/1": [0.0, 0.0], "surface/weight/2": [0.0, 1.0]}
        job = finished(tmp_path / "0", top1=[0.1, 0.2], **best)
        save(job, "plane_1", steps=[-1, 0, 1], loss=np.arange(9.0).reshape(3, 3))
        save(job, "plane_2", steps=[-1, 0, 1], loss=np.zeros((3, 3)))
        assert picture(figure, [(figure.cells[0], job)], tmp_path) == tmp_path / "figure.png"
        drawn = pd.read_csv(tmp_path / "figure.csv")
        assert drawn["loss"].dropna().tolist() == [4, 7]
        dots = drawn.dropna(subset="lowest in round").set_index("lowest in round")[["d1", "d2"]]
        assert dots.loc[1].tolist() == pytest.approx([(2 / 3) ** 0.5, 0])
        assert dots.loc[2].tolist() == pytest.approx([-(6**-0.5), -(2**-0.5)])

    def test_profiles_of_the_last_round(self, tmp_path: Path) -> None:
        """Two seeds with the losses 1 and 3 at the factor 0.5: a mean of 2."""
        (figure,) = find("fedlaw/fig-4")
        pairs = []
        for seed, low in ((1, 1.0), (2, 3.0)):
            job = finished(tmp_path, seed, top1=[0.1])
            shape = {"factors": [0.5, 1], "steps": [-1, 1], "values": [0, 0.02], "share": [0.7, 0.1]}
            save(job, "profile_1", val_by_factor=[low, 0.5], val_by_step=[4, 5], **shape)
            pairs.append((figure.cells[0], job))
        picture(figure, pairs, tmp_path)
        drawn = pd.read_csv(tmp_path / "figure.csv").set_index("panel")
        losses = drawn.loc["test loss of the rescaled model"]
        assert losses[["factor of all parameters", "mean"]].to_numpy().tolist() == [[0.5, 2], [1, 0.5]]
        assert drawn.loc["share of the parameters"]["mean"].tolist() == [0.7, 0.1]
        assert drawn.loc["test loss along the eigenvector"]["step along the top eigenvector"].tolist() == [-1, 1]

    def test_results_over_labels(self, tmp_path: Path) -> None:
        """The means of the last rounds by alpha, in its order, one line a method."""
        (figure,) = find("fedlaw/fig-9")
        figure = dataclasses.replace(figure, last=1)
        pairs = []
        for number, cell in enumerate(figure.cells):
            pairs.append((cell, finished(tmp_path / str(number), top1=[0.0, 0.1 * number])))
        picture(figure, pairs, tmp_path)
        drawn = pd.read_csv(tmp_path / "figure.csv")
        assert set(drawn["panel"]) == {"test accuracy (%)"}
        numbers = {tuple(cell.labels[axis] for axis in ("alpha", "method")): n for n, (cell, _) in enumerate(pairs)}
        mine = drawn[drawn["method"] == "FedAvg"]
        assert mine["alpha"].tolist() == [0.1, 1, 10, 100]
        assert mine["mean"].tolist() == pytest.approx([10 * numbers[alpha, "FedAvg"] for alpha in mine["alpha"]])

    @pytest.mark.parametrize(("id", "log"), [("fedgam/fig-5", False), ("fedlaw/fig-9", True)])
    def test_an_axis_with_a_zero_is_not_logarithmic(self, id: str, log: bool, tmp_path: Path) -> None:
        """FedGAM's trade-offs are 0 to 0.5, FedLAW's alphas 0.1 to 100."""
        (figure,) = find(id)
        pairs = [(cell, finished(tmp_path / str(n), top1=[0.1])) for n, cell in enumerate(figure.cells)]
        assert figure.plot is not None
        drawn = _over_labels(figure, figure.plot, pairs)
        assert isinstance(drawn, Panels)
        assert [plot.x.log for plot in drawn.panels.values() if isinstance(plot, Lines)] == [log]

    def test_classes_by_local_epoch_and_by_round(self, tmp_path: Path) -> None:
        """Two of four rounds are the last: frequent classes lose 3 and 2 in their two epochs, rare ones 5 and 5."""
        (figure,) = find("fedmgc/fig-2")
        figure = dataclasses.replace(figure, last=2)
        by_round = {"imbalance/frequent": [9, 8, 2, 3], "imbalance/rare": [9, 9, 5, 5]}
        epochs = {"imbalance/frequent_in/1": [9, 9, 2, 4], "imbalance/frequent_in/2": [9, 9, 2, 2]}
        epochs |= {"imbalance/rare_in/1": [9, 9, 5, 5], "imbalance/rare_in/2": [9, 9, 4, 6]}
        job = finished(tmp_path / "0", **by_round, **epochs)
        picture(figure, [(figure.cells[0], job)], tmp_path)
        drawn = pd.read_csv(tmp_path / "figure.csv").set_index(["panel", "method"])
        inside, over = "ours, by local epoch", "ours, by round"
        assert drawn.loc[inside, "majority classes"][["local epoch", "mean"]].to_numpy().tolist() == [[1, 3], [2, 2]]
        assert drawn.loc[inside, "minority classes"]["mean"].tolist() == [5, 5]
        assert drawn.loc[over, "majority classes"][["round", "mean"]].to_numpy().tolist() == [
            [1, 9],
            [2, 8],
            [3, 2],
            [4, 3],
        ]

    def test_a_histogram_beside_a_normal_distribution(self, tmp_path: Path) -> None:
        """Of round 100 ± 10 of 200: 0 to 20, and 21 to 41, without the ends, two in each bin."""
        (figure,) = find("fedlaw/fig-11")
        pairs = []
        for number, cell in enumerate(figure.cells[:2]):
            values = np.full(200, 1e9)
            values[89:110] = np.arange(21) + 21 * number
            pairs.append((cell, finished(tmp_path / str(number), top1=[0.1], **{"fedlaw/ratio": values.tolist()})))
        picture(figure, pairs, tmp_path)
        drawn = pd.read_csv(tmp_path / "figure.csv", keep_default_na=False)
        bars = drawn[drawn["variant"] == ""]
        assert len(bars) == 20
        assert bars["mean"].sum() == pytest.approx(40 / 42)
        assert bars["mean"].max() == pytest.approx(2 / 42)
        normal = drawn[drawn["variant"] != ""]
        assert normal["r"][normal["mean"].idxmax()] == pytest.approx(20.5, abs=1.1)

    def test_gamma_and_weights_over_the_servers_epochs(self, tmp_path: Path) -> None:
        """Of the rounds 1 to 5 the first, the middle and the last."""
        (figure,) = find("fedlaw/fig-14")
        job = finished(tmp_path, top1=[0.1] * 5)
        for round in range(1, 6):
            save(job, f"fedlaw_{round}", gamma=[1, round], weights=[[0.5, 0.5], [0.2, 0.8]], clients=[3, 4])
        picture(figure, [(figure.cells[0], job)], tmp_path)
        drawn = pd.read_csv(tmp_path / "figure.csv").set_index(["panel", "method", "epoch on the server"])["mean"]
        assert [drawn[f"γ, round {round}", "γ", 2] for round in (1, 3, 5)] == [1, 3, 5]
        assert drawn["λ, round 5", "client 4", 2] == 0.8
        assert len(drawn) == 3 * 2 + 3 * 4

    def test_detections_by_method_and_round(self, tmp_path: Path) -> None:
        """The first seed's; of three boxes the one with a score of 0.1 is not drawn."""
        (figure,) = find("fedgh-slides/fig-output")
        pairs = []
        for number, cell in enumerate(figure.cells):
            job = finished(tmp_path / str(number), **{"val/map50": [0.1] * 20})
            for round in (10, 20):
                boxes = [[0, 1, np.nan, 0, 0, 4, 4], [0, 1, 0.5, 0, 0, 4, round], [0, 0, 0.1, 0, 0, 1, 1]]
                save(job, f"detections_{round}", images=np.zeros((1, 3, 8, 8), np.uint8), boxes=boxes)
            pairs.append((cell, job))
        assert picture(figure, pairs, tmp_path) == tmp_path / "figure.png"
        drawn = pd.read_csv(tmp_path / "figure.csv")
        assert drawn["panel"].drop_duplicates().tolist() == [
            f"{method}, round {round}" for method in ("FedAvg", "FedAvg+GH") for round in (10, 20)
        ]
        assert drawn["score"].fillna(-1).tolist() == [-1, 0.5] * 4
        assert drawn["y2"].tolist() == [4, 10, 4, 20] * 2

    def test_nothing_to_draw(self, tmp_path: Path) -> None:
        """One round; 36 lines, more than there are looks; no run; and no cell."""
        one = [(A, finished(tmp_path / "one", top1=[0.1]))]
        many = [(Cell({"size": n}, ()), finished(tmp_path / str(n), top1=[0.1, 0.2])) for n in range(36)]
        for pairs in (one, many, [(A, waiting(tmp_path / "nowhere"))], []):
            assert picture(table(), pairs, tmp_path) is None


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_images(tmp_path / "images", CIFAR10, 3, 1)


def test_a_partition_takes_no_run(images: Path) -> None:
    """21 of 30 images are left to train on when each of 20 clients holds back 30 % of its own, rounded."""
    result = run("reproduce", "fedlaw/figure-13", "--data.root", images, "--data.held_out", 0)
    assert (result.status, result.err) == (0, "")
    folder = Path("runs/reproduce/fedlaw/fig-13")
    assert sorted(path.name for path in folder.iterdir()) == [f"figure.{kind}" for kind in ("csv", "pdf", "png", "svg")]
    drawn = pd.read_csv(folder / "figure.csv")
    assert (drawn["client"].nunique(), drawn["class"].nunique(), drawn["examples"].sum()) == (20, 10, 30)
    assert not Path("runs/reproduce/runs").exists()


@pytest.mark.slow
def test_from_the_command_to_the_page(images: Path) -> None:
    """Two rounds of 5 clients: ten pairs in the figure, the same smallest cosine in the table."""
    chosen = ["--subset", "num_clients=5", "alpha=IID", "--seeds", 1, "--rounds", 2]
    result = run("reproduce", "fedgh-paper/figure-2", *chosen, "--data.root", images, "--accelerator", "cpu")
    assert result.status == 0, result.out
    folder = Path("runs/reproduce/fedgh-paper/fig-2")
    drawn = pd.read_csv(folder / "figure.csv")
    similarities = drawn[drawn["panel"] == "cosine of a pair, num_clients 5"]
    assert similarities["pair of clients, by ascending cosine"].tolist() == list(range(1, 11))
    assert drawn[drawn["panel"] == "conflicting pairs, num_clients 5"]["round"].tolist() == [1, 2]
    results = pd.read_csv(folder / "results.csv")
    assert similarities["mean"].min() == pytest.approx(results["min_cosine"][0], abs=1e-6)
    assert "![fedgh-paper/fig-2](figure.png)" in (folder / "table.md").read_text()
    code = base64.b64encode((folder / "figure.svg").read_bytes()).decode()
    assert f'src="data:image/svg+xml;base64,{code}"' in (folder / "table.html").read_text()
