"""Figures for a paper: the drawn numbers read back from the axes, and files that are the same every time."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.style
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fl_lightning.report.drawing.on_paper import COLUMN, PAGE, STYLE, draw, save
from fl_lightning.report.drawing.paper_axes import y_range
from fl_lightning.report.drawing.plots import (
    Axis,
    Bars,
    Boxes,
    Bubbles,
    Dots,
    Heat,
    Line,
    Lines,
    Mark,
    Panels,
    Plot,
    Surface,
)
from fl_lightning.runs.pictures import COLOURS

ROUND, SHARE = Axis("round"), Axis("accuracy", percent=True)
SVG = "{http://www.w3.org/2000/svg}"


def line(method: str, means: Sequence[float], half: float = np.nan, variant: str = "") -> Line:
    """A line from round 1 on, with a band of this half width."""
    points = pd.DataFrame({"mean": means}, index=range(1, len(means) + 1), dtype=float)
    return Line(method, points.assign(low=points["mean"] - half, high=points["mean"] + half, seeds=3), variant)


def curves(*methods: str, rounds: int = 80, half: float = 0.1) -> Lines:
    """Lines that rise from 0.2 to 0.8 and more."""
    rise = np.linspace(0.2, 0.8, rounds)
    return Lines(ROUND, SHARE, [line(name, (rise + 0.01 * n).tolist(), half) for n, name in enumerate(methods)])


def heat(clients: int, title: str = "client") -> Heat:
    cells = pd.DataFrame(np.linspace(-1, 1, clients**2).reshape(clients, clients))
    return Heat(Axis(title), Axis("client"), cells, Axis("cosine"), -1, 1, diverging=True)


def surface(scale: float) -> Surface:
    steps = np.linspace(-1, 1, 5)
    return Surface(steps, scale * (1 + np.add.outer(steps**2, steps**2)))


def boxes(images: int = 4) -> Boxes:
    """Black images, each with a true object, a detection of it, and one that is not sure."""
    rows = []
    for number in range(images):
        rows += [[number, 1, np.nan, 2, 4, 6, 8], [number, 1, 0.9, 2, 4, 6, 9], [number, 0, 0.2, 0, 0, 1, 1]]
    return Boxes(np.zeros((images, 3, 8, 10), np.uint8), np.array(rows, float))


def dots(*methods: str) -> Dots:
    places = pd.DataFrame({"x": [0.1, 0.2], "y": ["first", "second"], "name": ["a", "b"]})
    return Dots(Axis("conflict", percent=True), Axis("layer"), dict.fromkeys(methods, places))


SEVEN = ("FedAvg", "GradientHarmonization", "FedProx", "SCAFFOLD", "FedNova", "FedGAM-CV", "FedLAW")
PLOTS: dict[str, Plot] = {
    "two": curves("A", "B"),
    "seven": curves(*SEVEN),
    "few rounds": curves(*SEVEN[:3], rounds=5),
    "long name": curves("A", "FedAvg with a name that is longer than a column of any paper is wide, of any width"),
    "panels": Panels({name: curves("A", "B") for name in ("alpha 0.1", "alpha 1", "IID")}),
    "many panels": Panels({f"CIFAR-10, alpha {n}": curves(*SEVEN[:3]) for n in range(6)}),
    "dots": dots("A", "B", "C"),
    "bars": Bars(Axis("seconds"), pd.DataFrame({"local": [1.0, 2], "rest": [0.5, 0.25]}, index=["A", "B"])),
    "heat": heat(10),
    "heat over rounds": heat(100, "round"),
    "heats": Panels({name: heat(20) for name in "ABCD"}),
    "surface": surface(1),
    "surfaces": Panels({"A": surface(1), "B": surface(5), "C": surface(9)}),
    "boxes": Panels({name: boxes() for name in "ABCDEF"}, columns=3),
    "bubbles": Bubbles(np.arange(30).reshape(10, 3)),
    "bubbles of many": Bubbles(np.eye(100, 10, dtype=int)),
    "bubbles of few": Panels({name: Bubbles(np.ones((4, 10), int)) for name in SEVEN[:3]}),
    "partitions": Panels({"even": Bubbles(np.ones((100, 10), int)), "odd": Bubbles(np.eye(100, 10, dtype=int))}),
}
QUICK = {"seven", "long name", "panels", "dots", "bars", "heat over rounds", "heats", "surfaces", "bubbles of few"}
every = pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in PLOTS])
files = [pytest.param(n, marks=[] if n in ("dots", "heat") else pytest.mark.slow) for n in PLOTS]


@cache
def drawn(name: str) -> Figure:
    return draw(PLOTS[name])


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    """The style sets how wide a text is."""
    with matplotlib.style.context(STYLE):
        yield


def panels(figure: Figure) -> list[Any]:
    """The axes with data, without a colour bar's."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def dashes(line: Any) -> Any:
    offset, pattern = line._unscaled_dash_pattern
    return offset, tuple(pattern)


def texts(figure: Figure) -> list[Any]:
    return [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]


class TestEveryPlot:
    @every
    def test_letters_of_one_size_lie_in_a_column_or_a_page_and_cover_nothing(self, name: str) -> None:
        """Neither the legend nor a panel covers a panel, and names along an axis do not touch."""
        figure = drawn(name)
        assert round(figure.get_figwidth(), 2) in (COLUMN, PAGE)
        assert {text.get_fontsize() for text in texts(figure)} == {8}
        box = figure.get_tightbbox()
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= figure.get_figwidth()
        assert box.y1 <= figure.get_figheight()
        boxes = [axes.get_tightbbox() for axes in figure.axes]
        boxes += [legend.get_window_extent() for legend in figure.legends]
        for number, one in enumerate(boxes):
            for other in boxes[:number]:
                across = min(one.x1, other.x1) - max(one.x0, other.x0)
                down = min(one.y1, other.y1) - max(one.y0, other.y0)
                assert min(across, down) < 1, (number, one, other)  # pixels
        for axes in panels(figure):
            names = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
            assert all(left.x1 <= right.x0 for left, right in pairwise(sorted(names, key=lambda each: each.x0)))

    @pytest.mark.parametrize("name", files)
    def test_files_are_the_same_every_time(self, name: str, tmp_path: Path) -> None:
        """And hold text as text, in fonts that journals take: no Type 3."""
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir()
            save(PLOTS[name], tmp_path / folder, "it")
        first = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
        assert sorted(first) == ["it.csv", "it.pdf", "it.svg"]
        assert first == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
        svg = ElementTree.fromstring(first["it.svg"])
        assert svg.tag == f"{SVG}svg"
        assert name != "dots" or "A" in {"".join(text.itertext()) for text in svg.iter(f"{SVG}text")}
        assert b"/FontType 3" not in first["it.pdf"]
        assert b"/Subtype /Type3" not in first["it.pdf"]
        table = PLOTS[name].table()
        pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "one" / "it.csv"), table, check_dtype=False)


class TestLines:
    def test_numbers(self) -> None:
        """Means 0.2 and 0.6, band from 0.1 to 0.7 by half a width of 0.1."""
        (axes,) = draw(Lines(ROUND, SHARE, [line("A", [0.2, 0.6], 0.1)])).axes
        (drawn,) = axes.get_lines()
        assert drawn.get_xydata().tolist() == [[1, 0.2], [2, 0.6]]
        corners = axes.collections[0].get_paths()[0].vertices
        for x, low, high in ((1, 0.1, 0.3), (2, 0.5, 0.7)):
            assert set(corners[corners[:, 0] == x, 1].round(9)) == {low, high}
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy (%)")
        assert "60" in [text.get_text() for text in axes.get_yticklabels()]
        assert not axes.figure.legends, "one method needs no legend"

    def test_a_method_keeps_its_look(self) -> None:
        """B is the second of the paper, also where it is the only one; its line before the correction is dotted."""
        (axes,) = draw(Lines(ROUND, SHARE, [line("B", [0.1, 0.2])]), ["A", "B"]).axes
        alone = axes.get_lines()[0]
        (axes,) = draw(curves("A", "B")).axes
        assert alone.get_color() == axes.get_lines()[1].get_color() == COLOURS[1]
        assert dashes(alone) == dashes(axes.get_lines()[1]) == (0, (3, 1.5))
        both = Lines(ROUND, SHARE, [line("B", [0.1, 0.2], variant=each) for each in ("", "before")])
        figure = draw(both, ["A", "B"])
        after, before = figure.axes[0].get_lines()
        assert before.get_color() == after.get_color() == COLOURS[1]
        assert (dashes(after), dashes(before)) == ((0, (3, 1.5)), (0, (1, 1.2)))
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["B", "before"]

    def test_few_points_are_marked(self) -> None:
        """And one seed has no band."""
        assert not draw(Lines(ROUND, SHARE, [line("A", [0.2, 0.6])])).axes[0].collections
        for rounds, markers in ((50, {"o", "s"}), (51, {""})):
            (axes,) = draw(curves("A", "B", rounds=rounds)).axes
            assert {drawn.get_marker().replace("None", "") for drawn in axes.get_lines()} == markers

    @pytest.mark.parametrize(
        ("axis", "means", "half", "low", "high"),
        [
            # half a span beyond, then 4 % of the 2 as a margin
            (Axis("loss"), [0, 1], 10, -0.5 - 0.08, 1.5 + 0.08),
            (Axis("loss"), [0, 1], 0.1, -0.1 - 0.048, 1.1 + 0.048),
            # shares stay between 0 and 100, written as 0.9 or as 90
            (SHARE, [0.1, 0.9], 0.3, -0.04, 1.04),
            (Axis("accuracy (%)"), [10, 90], 30, -4, 104),
        ],
    )
    def test_the_range_follows_the_means(
        self, axis: Axis, means: list[float], half: float, low: float, high: float
    ) -> None:
        assert y_range([Lines(ROUND, axis, [line("A", means, half)])]) == pytest.approx((low, high))

    @pytest.mark.parametrize("means", [[0.5], [0.5, 0.5], [0.0, 0.0], [np.nan, np.nan], [np.inf, 1.0]])
    def test_any_line_has_a_range(self, means: list[float]) -> None:
        low, high = y_range([Lines(ROUND, Axis("loss"), [line("A", means, 0.1)])])
        assert low < high

    def test_marks(self) -> None:
        """The paper's 0.9 is in the range and in the legend, once for both methods."""
        marks = [Mark(name, 2, 0.9, "paper") for name in "AB"] + [Mark("A", 1, 0.3, "critical round")]
        figure = draw(Lines(ROUND, SHARE, [line(name, [0.2, 0.4]) for name in "AB"], marks))
        a, b, *points = figure.axes[0].get_lines()
        assert [point.get_xydata().tolist() for point in points] == [[[2, 0.9]], [[2, 0.9]], [[1, 0.3]]]
        assert [point.get_marker() for point in points] == ["*", "*", "D"]
        assert [point.get_color() for point in points] == [a.get_color(), b.get_color(), a.get_color()]
        assert figure.axes[0].get_ylim()[1] > 0.9
        written = sorted(text.get_text() for text in figure.legends[0].get_texts())
        assert written == ["A", "B", "critical round", "paper"]

    def test_dollars_are_no_formulas(self) -> None:
        figure = draw(curves("costs $1, gains $2", "a_b^c"))
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["costs $1, gains $2", "a_b^c"]
        assert not any(text.get_parse_math() for text in texts(figure))


class TestPanels:
    def test_share_y_and_name_it_once(self) -> None:
        low, high = Lines(ROUND, SHARE, [line("A", [0, 0.1])]), Lines(ROUND, SHARE, [line("A", [0.8, 1])])
        one, two = draw(Panels({"low": low, "high": high})).axes
        assert one.get_ylim() == two.get_ylim()
        assert (one.get_ylabel(), two.get_ylabel()) == ("accuracy (%)", "")
        assert (one.get_title(), two.get_title()) == ("low", "high")
        assert not any(text.get_visible() and text.get_text() for text in two.get_yticklabels())
        one, two = draw(Panels({"low": low, "high": high}, shared=False)).axes
        assert one.get_ylim() != two.get_ylim()
        assert any(text.get_visible() and text.get_text() for text in two.get_yticklabels())

    def test_other_quantities_have_other_ranges(self) -> None:
        """A title that names the y-axis stands for the name at the axis."""
        loss = Lines(ROUND, Axis("loss"), [line("A", [5, 2])])
        one, two = draw(Panels({"seed 1": curves("A"), "loss, seed 1": loss})).axes
        assert one.get_ylim()[1] < 2 < two.get_ylim()[1]
        assert (one.get_ylabel(), two.get_ylabel()) == ("accuracy (%)", "")

    @pytest.mark.parametrize(("count", "columns", "shape"), [(4, 0, (1, 4)), (5, 0, (2, 3)), (4, 2, (2, 2))])
    def test_rows_and_columns(self, count: int, columns: int, shape: tuple[int, int]) -> None:
        figure = draw(Panels({f"panel {n}": curves("A") for n in range(count)}, columns=columns))
        grid = figure.axes[0].get_subplotspec().get_gridspec()
        assert (grid.nrows, grid.ncols) == shape
        below = [axes.get_xlabel() for axes in figure.axes]
        assert below == [""] * (count - shape[1]) + ["round"] * shape[1]


class TestOthers:
    def test_dots(self) -> None:
        (axes,) = draw(dots("A", "B")).axes
        assert [drawn.get_xdata().tolist() for drawn in axes.get_lines()] == [[0.1, 0.2]] * 2
        assert [text.get_text() for text in axes.get_yticklabels()] == ["first", "second"]
        bottom, top = axes.get_ylim()
        assert bottom > top

    def test_bars(self) -> None:
        """A has 1 and 0.5 on top of it, B 2 and 0.25; A is at the top."""
        (axes,) = draw(PLOTS["bars"]).axes
        assert [[(bar.get_x(), bar.get_width()) for bar in part] for part in axes.containers] == [
            [(0, 1), (0, 2)],
            [(1, 0.5), (2, 0.25)],
        ]
        assert [text.get_text() for text in axes.get_yticklabels()] == ["A", "B"]
        assert axes.get_ylim()[0] > axes.get_ylim()[1]

    def test_heat(self) -> None:
        axes, bar = draw(heat(3)).axes
        (image,) = axes.images
        assert image.get_array().tolist() == np.linspace(-1, 1, 9).reshape(3, 3).tolist()
        assert image.get_clim() == (-1, 1)
        assert bar.get_ylabel() == "cosine"

    def test_surfaces_have_one_scale(self) -> None:
        """From 1 to 9 · 3: the corner of C has 9 (1 + 1 + 1)."""
        figure = draw(PLOTS["surfaces"])
        levels = [axes.collections[0].levels for axes in panels(figure)]
        assert (levels[0][0], levels[0][-1]) == pytest.approx((1, 27))
        assert all((each == levels[0]).all() for each in levels)
        assert len(figure.axes) == 4

    def test_bubbles_have_one_scale(self) -> None:
        """9 examples fill a cell, 4 are two thirds as wide, in whichever panel."""
        both = Panels({"one": Bubbles(np.array([[9, 4]])), "two": Bubbles(np.array([[4, 0]]))}, columns=1)
        figure = draw(both)
        widths = [2 * axes.collections[0]._widths for axes in figure.axes]
        assert [each.tolist() for each in widths] == [pytest.approx([1, 2 / 3]), pytest.approx([2 / 3])]
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["the largest bubble: 9 examples"]


class TestTable:
    def test_of_lines(self) -> None:
        drawn = Lines(ROUND, SHARE, [line("A", [0.2, 0.6], 0.1)], [Mark("A", 2, 0.9, "paper")]).table()
        assert list(drawn) == ["method", "round", "mean", "low", "high", "seeds", "mark"]
        assert drawn.round(9).fillna(-1).to_numpy().tolist() == [
            ["A", 1, 0.2, 0.1, 0.3, 3, ""],
            ["A", 2, 0.6, 0.5, 0.7, 3, ""],
            ["A", 2, 0.9, -1, -1, -1, "paper"],
        ]

    def test_of_variants_in_panels(self) -> None:
        both = Lines(ROUND, SHARE, [line("A", [0.5], variant=each) for each in ("before", "after")])
        drawn = Panels({"left": both, "right": curves("B", rounds=1)}).table()
        assert drawn[["panel", "method", "variant", "mean"]].fillna("").to_numpy().tolist() == [
            ["left", "A", "before", 0.5],
            ["left", "A", "after", 0.5],
            ["right", "B", "", 0.2],
        ]

    def test_of_the_others(self) -> None:
        assert dots("A").table()[["method", "conflict", "layer", "name"]].to_numpy().tolist() == [
            ["A", 0.1, "first", "a"],
            ["A", 0.2, "second", "b"],
        ]
        assert PLOTS["bars"].table().to_numpy().tolist() == [
            ["A", "local", 1],
            ["B", "local", 2],
            ["A", "rest", 0.5],
            ["B", "rest", 0.25],
        ]
        assert list(heat(2).table()) == ["client", "other client", "cosine"]
        assert Bubbles(np.array([[1, 2]])).table().to_numpy().tolist() == [[0, 0, 1], [0, 1, 2]]
        grid = Surface(np.array([-1.0, 1]), np.array([[1.0, 2], [3, 4]])).table().set_index(["d1", "d2"])["loss"]
        assert (grid[-1, 1], grid[1, -1]) == (2, 3)


def test_boxes_lie_on_their_images() -> None:
    """Images of 10 by 8 pixels side by side; the second one's boxes begin at 10 + 2. What is not sure is left out."""
    (axes,) = draw(boxes(2)).axes
    (image,) = axes.images
    assert image.get_extent() == [0, 20, 8, 0]
    places = [(patch.get_x(), patch.get_y(), patch.get_width(), patch.get_height()) for patch in axes.patches]
    assert places == [(2, 4, 4, 4), (2, 4, 4, 5), (12, 4, 4, 4), (12, 4, 4, 5)]
    table = boxes(2).table()
    assert table["score"].fillna(-1).tolist() == [-1, 0.9, -1, 0.9]
