"""What is drawn is what lies in the run folders: lines, bands, panels and the paper's points, by hand."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from job_folders import finished

from fl_lightning.report.plots import Lines, Mark, Panels
from fl_lightning.reproduce.experiment import Cell, Experiment
from fl_lightning.reproduce.pictures import SIMILARITIES, Curve, by_rank, curves, lines


def curve(values: Sequence[float], measure: str = "top1", **labels: Any) -> Curve:
    points = pd.DataFrame({"mean": values}, index=range(1, len(values) + 1))
    return Curve(labels, measure, points.assign(low=points["mean"] - 1, high=points["mean"] + 1, seeds=1))


def table(*rows: dict[str, Any]) -> Experiment:
    """An experiment for which the paper prints these numbers."""
    return Experiment("x", "X", "", "", rows, "", ("top1",))


def plots(found: Sequence[Curve], measures: dict[str, str], panels: Sequence[str], *rows: dict[str, Any]) -> Panels:
    drawn = lines(found, measures, panels, table(*rows))
    assert isinstance(drawn, Panels)
    return drawn


def means(plot: Any) -> dict[str, list[float]]:
    """The means of each line."""
    return {line.method: line.points["mean"].tolist() for line in plot.lines}


class TestCurves:
    def test_mean_and_interval_over_the_seeds(self, tmp_path: Path) -> None:
        """Seeds 1 and 2 have 0.1, 0.3 and 0.2, 0.6: in per cent 15 ± 5 t, then 45 ± 15 t, t(0.975, 1) = 12.7062."""
        pairs = [
            (Cell({"method": "A"}, ()), finished(tmp_path, s, top1=v)) for s, v in ((1, [0.1, 0.3]), (2, [0.2, 0.6]))
        ]
        (found,) = curves(["top1"], pairs)
        assert found.points.index.tolist() == [1, 2]
        assert found.points["mean"].tolist() == pytest.approx([15, 45])
        assert found.points["seeds"].tolist() == [2, 2]
        plot = lines([found], {"top1": "accuracy"}, [], table())
        assert isinstance(plot, Lines)
        (line,) = plot.lines
        assert line.points["low"].tolist() == pytest.approx([15 - 63.531, 45 - 190.593], abs=1e-2)
        assert line.points["high"].tolist() == pytest.approx([15 + 63.531, 45 + 190.593], abs=1e-2)
        assert (plot.x.title, plot.y.title) == ("round", "accuracy")

    def test_only_what_is_finished_and_logged(self, tmp_path: Path) -> None:
        """A run under way, a metric that is missing, a round without a value; a cell named twice is one."""
        half = finished(tmp_path / "half", top1=[0.5])
        (half.folder / "finished.json").unlink()
        gaps = finished(tmp_path / "gaps", top1=[0.5, math.nan, 0.7])
        pairs = [
            (Cell({"method": "A"}, ()), half),
            (Cell({"method": "B"}, ()), gaps),
            (Cell({"method": "B"}, ()), gaps),
        ]
        (found,) = curves(["top1", "val/loss"], pairs)
        assert (found.labels, found.measure) == ({"method": "B"}, "top1")
        assert found.points["mean"].to_dict() == {1: 50, 3: 70}
        assert found.points["seeds"].tolist() == [1, 1]

    def test_similarities_are_sorted_and_averaged_by_rank(self, tmp_path: Path) -> None:
        """0.3, -0.5, 0.1 and 0.2, 0, -0.1: by rank (-0.5, -0.1), (0.1, 0), (0.3, 0.2)."""
        one = [[1, 0.3, -0.5], [0.3, 1, 0.1], [-0.5, 0.1, 1]]
        two = [[1, 0.2, 0.0], [0.2, 1, -0.1], [0.0, -0.1, 1]]
        runs = [finished(tmp_path, seed, cosines) for seed, cosines in ((1, one), (2, two))]
        (found,) = curves([SIMILARITIES], [(Cell({"alpha": 0.1}, ()), each) for each in runs])
        assert found.points["mean"].to_dict() == {
            1: pytest.approx(-0.3),
            2: pytest.approx(0.05),
            3: pytest.approx(0.25),
        }
        assert found.points["low"][1] == pytest.approx(-0.3 - 2.54124, abs=1e-4)  # 0.2 t(0.975, 1)
        assert lines([found], {SIMILARITIES: "cosine"}, [], table()).x.title.startswith("pair of clients")
        assert curves([SIMILARITIES], [(Cell({}, ()), finished(tmp_path / "none", top1=[0.1]))]) == []

    def test_similarities_of_fewer_pairs_are_spread_over_all_ranks(self) -> None:
        """Three values and two, 0.4 and 0.0: the middle of these is 0.2."""
        ranked = by_rank([np.array([0.5, -0.5, 0.1]), np.array([0.4, 0.0])])
        assert ranked[0].to_dict() == {1: -0.5, 2: 0.1, 3: 0.5}
        assert ranked[1].to_dict() == {1: 0.0, 2: 0.2, 3: 0.4}


class TestPanels:
    def test_axes_part_panels_or_lines(self) -> None:
        """Two data sets across; in each A and B. The axis that all share is not named."""
        found = [
            curve([value], dataset=dataset, alpha=1, method=method)
            for value, (dataset, method) in enumerate([("X", "A"), ("X", "B"), ("Y", "B"), ("Y", "A")])
        ]
        drawn = plots(found, {"top1": "accuracy"}, ["dataset"])
        assert {title: means(plot) for title, plot in drawn.panels.items()} == {
            "X": {"A": [0], "B": [1]},
            "Y": {"B": [2], "A": [3]},
        }
        assert drawn.shared

    def test_a_curve_that_lacks_an_axis_is_in_all_its_panels(self) -> None:
        found = [curve([1], proxy=proxy, method="B") for proxy in ("even", "odd")] + [curve([2], method="A")]
        drawn = plots(found, {"top1": ""}, ["proxy"])
        assert [means(plot) for plot in drawn.panels.values()] == [{"B": [1], "A": [2]}] * 2

    def test_the_last_axis_is_the_fastest(self) -> None:
        """Whatever the order of the cells; each axis' labels in the order in which they come."""
        found = [curve([1], a=a, b=b) for b in ("late", "early") for a in (2, 1)]
        titles = list(plots(found, {"top1": ""}, ["a", "b"]).panels)
        assert titles == ["a 2, late", "a 2, early", "a 1, late", "a 1, early"]

    def test_each_measure_has_its_own(self) -> None:
        found = [curve([1], measure="top1", alpha=0.1), curve([2], measure="val/loss", alpha=0.1)]
        drawn = plots(found, {"top1": "accuracy", "val/loss": "loss"}, []).panels
        assert {title: (plot.y.title, means(plot)) for title, plot in drawn.items()} == {
            "accuracy": ("accuracy", {"ours": [1]}),
            "loss": ("loss", {"ours": [2]}),
        }

    def test_shares_are_written_in_per_cent(self) -> None:
        """Not twice: top1 is in per cent; and not a loss."""
        for measure, percent in (("val/top1", True), ("top1", False), ("val/loss", False)):
            assert lines([curve([1], measure=measure)], {measure: ""}, [], table()).y.percent == percent

    def test_measures_by_labels(self) -> None:
        found = [curve([1], measure=measure, size=size) for measure in ("top1", "val/loss") for size in (5, 10)]
        drawn = plots(found, {"top1": "accuracy", "val/loss": "loss"}, ["size"])
        assert [*drawn.panels] == ["accuracy, size 5", "accuracy, size 10", "loss, size 5", "loss, size 10"]
        assert drawn.columns == 2

    def test_numbers_are_named_and_infinity_is_iid(self) -> None:
        found = [curve([1], **{"data.partition.alpha": alpha, "gamma": 0.5}) for alpha in (0.1, math.inf)]
        assert [*means(lines(found, {"top1": ""}, [], table()))] == ["alpha 0.1", "IID"]
        assert [*plots(found, {"top1": ""}, ["data.partition.alpha"]).panels] == ["alpha 0.1", "IID"]

    @pytest.mark.parametrize(("labels", "columns"), [((3, 3), 3), ((1, 4), 0), ((2, 5), 5), ((1, 3), 0), ((2, 7), 0)])
    def test_columns(self, labels: tuple[int, int], columns: int) -> None:
        """A row has the labels of the last axis, unless that would be the only one or long."""
        found = [curve([1], a=f"a{a}", b=f"b{b}") for a in range(labels[0]) for b in range(labels[1])]
        assert plots(found, {"top1": ""}, ["a", "b"]).columns == columns


class TestMarks:
    def test_the_papers_numbers_at_the_last_round(self) -> None:
        """Of A at both alphas and of B at one; the loss is no measure of the table, C is no method of it."""
        rows = [
            {"method": "A", "alpha": 0.1, "top1": 50.0},
            {"method": "A", "alpha": math.inf, "top1": 90.0},
            {"method": "B", "alpha": 0.1, "top1": 60.0},
        ]
        found = [
            curve([1, 2, 3], measure, alpha=alpha, method=method)
            for measure in ("top1", "val/loss")
            for alpha in (0.1, math.inf)
            for method in "ABC"
        ]
        drawn = plots(found, {"top1": "accuracy", "val/loss": "loss"}, ["alpha"], *rows).panels
        assert [list(plot.marks) for plot in drawn.values()] == [
            [Mark("A", 3, 50.0, "paper"), Mark("B", 3, 60.0, "paper")],
            [Mark("A", 3, 90.0, "paper")],
            [],
            [],
        ]

    def test_at_the_rounds_that_the_table_names(self) -> None:
        """Rounds 1 and 2 of a run of 3; the paper's round 100 is beyond the run."""
        rows = [{"method": "A", "round": round, "top1": 10.0 * round} for round in (1, 2, 100)]
        plot = lines([curve([7, 8, 9], method="A")], {"top1": ""}, [], table(*rows))
        assert list(plot.marks) == [Mark("ours", 1, 10.0, "paper"), Mark("ours", 2, 20.0, "paper")]
