"""What is drawn is what lies in the run folders: lines, bands, panels and bubbles, by hand."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from job_folders import finished

from fl_lightning.fit.configs import Cell
from fl_lightning.reproduce.drawing import (
    COLOURS,
    SIMILARITIES,
    Curve,
    by_rank,
    curves,
    draw,
    draw_partition,
    tidy,
    tidy_counts,
)


def curve(values: Sequence[float], measure: str = "top1", **labels: Any) -> Curve:
    points = pd.DataFrame({"mean": values}, index=range(1, len(values) + 1))
    return Curve(labels, measure, points.assign(low=points["mean"] - 1, high=points["mean"] + 1, seeds=1))


def drawn(axes: Any) -> dict[str, list[tuple[float, float]]]:
    """The points of each line."""
    return {line.get_label(): [tuple(point) for point in line.get_xydata().tolist()] for line in axes.get_lines()}


def only(axes: Any) -> list[tuple[float, float]]:
    """The points of the one line."""
    (points,) = drawn(axes).values()
    return points


def edges(axes: Any, number: int = 0) -> dict[float, tuple[float, float]]:
    """Lower and upper edge of a band at each x."""
    corners = axes.collections[number].get_paths()[0].vertices
    return {
        x: (min(corners[corners[:, 0] == x, 1]), max(corners[corners[:, 0] == x, 1])) for x in sorted({*corners[:, 0]})
    }


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
        axes = draw([found], {"top1": "accuracy"}, []).axes[0]
        assert only(axes) == [(1, pytest.approx(15)), (2, pytest.approx(45))]
        assert edges(axes) == {
            1: pytest.approx((15 - 63.531, 15 + 63.531), abs=1e-2),
            2: pytest.approx((45 - 190.593, 45 + 190.593), abs=1e-2),
        }
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_legend()) == ("round", "accuracy", None)

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
        axes = draw([found], {SIMILARITIES: "cosine"}, []).axes[0]
        assert only(axes) == [(1, pytest.approx(-0.3)), (2, pytest.approx(0.05)), (3, pytest.approx(0.25))]
        assert edges(axes)[1] == pytest.approx((-0.3 - 2.54124, -0.3 + 2.54124), abs=1e-4)  # ± 0.2 t(0.975, 1)
        assert axes.get_xlabel().startswith("pair of clients")
        assert curves([SIMILARITIES], [(Cell({}, ()), finished(tmp_path / "none", top1=[0.1]))]) == []

    def test_similarities_of_fewer_pairs_are_spread_over_all_ranks(self) -> None:
        """Three values and two, 0.4 and 0.0: the middle of these is 0.2."""
        ranked = by_rank([np.array([0.5, -0.5, 0.1]), np.array([0.4, 0.0])])
        assert ranked[0].to_dict() == {1: -0.5, 2: 0.1, 3: 0.5}
        assert ranked[1].to_dict() == {1: 0.0, 2: 0.2, 3: 0.4}

    def test_as_a_table(self) -> None:
        found = [curve([1.0, 2.0], alpha=0.1), curve([5.0], alpha=math.inf)]
        table = tidy(found)
        assert table[["round", "mean", "low", "high", "alpha"]].to_numpy().tolist() == [
            [1, 1, 0, 2, 0.1],
            [2, 2, 1, 3, 0.1],
            [1, 5, 4, 6, math.inf],
        ]
        assert table["measure"].tolist() == ["top1"] * 3


class TestPanels:
    def test_axes_part_panels_or_lines(self) -> None:
        """Two data sets across; in each A and B, of one look. The axis that all share is not named."""
        found = [
            curve([value], dataset=dataset, alpha=1, method=method)
            for value, (dataset, method) in enumerate([("X", "A"), ("X", "B"), ("Y", "B"), ("Y", "A")])
        ]
        one, two = draw(found, {"top1": "accuracy"}, ["dataset"]).axes
        assert (one.get_title(), two.get_title()) == ("X", "Y")
        assert (drawn(one), drawn(two)) == ({"A": [(1, 0)], "B": [(1, 1)]}, {"B": [(1, 2)], "A": [(1, 3)]})
        colours = [{line.get_label(): line.get_color() for line in axes.get_lines()} for axes in (one, two)]
        assert colours[0] == colours[1] == {"A": COLOURS[0], "B": COLOURS[1]}
        assert [text.get_text() for text in one.get_legend().get_texts()] == ["A", "B"]
        assert two.get_legend() is None

    def test_a_curve_that_lacks_an_axis_is_in_all_its_panels(self) -> None:
        found = [curve([1], proxy=proxy, method="B") for proxy in ("even", "odd")] + [curve([2], method="A")]
        assert [drawn(axes) for axes in draw(found, {"top1": ""}, ["proxy"]).axes] == [
            {"B": [(1, 1)], "A": [(1, 2)]}
        ] * 2

    def test_the_last_axis_is_the_fastest(self) -> None:
        """Whatever the order of the cells; each axis' labels in the order in which they come."""
        found = [curve([1], a=a, b=b) for b in ("late", "early") for a in (2, 1)]
        titles = [axes.get_title() for axes in draw(found, {"top1": ""}, ["a", "b"]).axes]
        assert titles == ["a 2, late", "a 2, early", "a 1, late", "a 1, early"]

    def test_each_measure_has_its_own(self) -> None:
        found = [curve([1], measure="top1", alpha=0.1), curve([2], measure="val/loss", alpha=0.1)]
        one, two = draw(found, {"top1": "accuracy", "val/loss": "loss"}, []).axes
        assert (one.get_ylabel(), two.get_ylabel()) == ("accuracy", "loss")
        assert (only(one), only(two)) == ([(1, 1)], [(1, 2)])

    def test_numbers_are_named_and_infinity_is_iid(self) -> None:
        found = [curve([1], **{"data.partition.alpha": alpha, "gamma": 0.5}) for alpha in (0.1, math.inf)]
        (axes,) = draw(found, {"top1": ""}, []).axes
        assert [*drawn(axes)] == ["alpha 0.1", "IID"]
        assert [axes.get_title() for axes in draw(found, {"top1": ""}, ["data.partition.alpha"]).axes] == [
            "alpha 0.1",
            "IID",
        ]

    def test_many_lines_have_looks_of_their_own_and_a_legend_outside(self) -> None:
        figure = draw([curve([1], method=f"M{number}") for number in range(28)], {"top1": ""}, [])
        looks = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].get_lines()}
        assert len(looks) == 28
        assert len(figure.legends[0].get_texts()) == 28
        assert figure.axes[0].get_legend() is None

    @pytest.mark.parametrize(
        ("labels", "shape"), [((3, 3), (3, 3)), ((1, 4), (2, 2)), ((2, 5), (2, 5)), ((1, 3), (1, 3))]
    )
    def test_rows_and_columns(self, labels: tuple[int, int], shape: tuple[int, int]) -> None:
        """A row has the labels of the last axis, unless that would be the only one and long."""
        found = [curve([1], a=f"a{a}", b=f"b{b}") for a in range(labels[0]) for b in range(labels[1])]
        grid = draw(found, {"top1": ""}, ["a", "b"]).axes[0].get_subplotspec().get_gridspec()
        assert (grid.nrows, grid.ncols) == shape

    def test_rounds_are_whole(self) -> None:
        figure = draw([curve([1, 2])], {"top1": ""}, [])
        figure.draw_without_rendering()
        assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())


class TestPartition:
    COUNTS: Mapping[str, torch.Tensor] = {
        "one": torch.tensor([[4, 0], [0, 1]]),
        "two": torch.tensor([[0, 0], [9, 0]]),
    }

    def test_one_below_the_other(self) -> None:
        """The first's classes in rows 0 and 1, the second's in 3 and 4; the diameter is the root of the share."""
        (axes,) = draw_partition(self.COUNTS).axes
        (bubbles,) = axes.collections
        assert {tuple(at): width for at, width in zip(bubbles.get_offsets(), bubbles.get_widths(), strict=True)} == {
            (0, 0): pytest.approx(2 / 3),
            (1, 1): pytest.approx(1 / 3),
            (1, 3): pytest.approx(1),
        }
        assert [text.get_text() for text in axes.get_yticklabels()] == ["one", "two"]
        assert axes.get_yticks().tolist() == [0.5, 3.5]

    def test_as_a_table(self) -> None:
        table = tidy_counts(self.COUNTS)
        held = table[table["examples"] > 0]
        assert held[["partition", "client", "class", "examples"]].to_numpy().tolist() == [
            ["one", 0, 0, 4],
            ["one", 1, 1, 1],
            ["two", 1, 0, 9],
        ]
        assert len(table) == 8
