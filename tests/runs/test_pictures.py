"""Bubbles, cosines and loss surfaces show what they are given."""

import warnings
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

from fl_lightning.runs.pictures import COLOURS, DRAWN, NAMED, ON_DARK, bubbles, draw_cosines, draw_surfaces


def luminance(colour: str) -> float:
    """Relative luminance of a colour, as the Web Content Accessibility Guidelines define it."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize(("colours", "ground"), [(COLOURS, "#ffffff"), (ON_DARK, "#14171b")])
def test_colours_stand_out_from_the_ground(colours: tuple[str, ...], ground: str) -> None:
    """The contrast of text, 4.5, for lines and marks, too."""
    for colour in colours:
        low, high = sorted((luminance(colour), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour


# What a colour-blind eye makes of linear red, green and blue (Machado et al., 2009, severity 1): protan, deutan.
BLIND = (
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
)


@pytest.mark.parametrize("colours", [COLOURS, ON_DARK])
@pytest.mark.parametrize("eye", [np.eye(3), *BLIND])
def test_colours_differ_for_every_eye(colours: tuple[str, ...], eye: Any) -> None:
    """At least 0.1 apart in OKLab (Ottosson, 2020), where black and white are 1 apart."""
    lms = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    lab = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    rgb = np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.cbrt(np.clip(linear @ np.array(eye).T, 0, 1) @ np.array(lms).T) @ np.array(lab).T
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=2) + np.eye(len(colours))
    assert apart.min() >= 0.1


def test_bubbles_are_where_the_examples_are_and_as_large() -> None:
    """Counts 4 and 1 make diameters of 1 and 1/2: areas of 4 to 1. Clients go across, classes down."""
    figure = bubbles(torch.tensor([[0, 4, 0], [1, 0, 0]]))
    (drawn,) = figure.axes[0].collections
    assert drawn.get_offsets().tolist() == [[0, 1], [1, 0]]
    assert (2 * drawn._widths).tolist() == pytest.approx([1.0, 0.5])
    assert "4 examples" in figure.axes[0].get_title(loc="left")
    bottom, top = figure.axes[0].get_ylim()
    assert bottom > top


def test_clients_are_named() -> None:
    """In both pictures; a dollar begins no formula."""
    names = ["oslo", "$rome", "bern$"]
    bubbled = bubbles(torch.ones(3, 2, dtype=torch.int64), names)
    crossed = draw_cosines(np.eye(3), names)
    for figure in (bubbled, crossed):
        figure.canvas.draw()
        labels = figure.axes[0].get_xticklabels()
        assert [label.get_text() for label in labels] == names
        assert not any(label.get_parse_math() for label in labels)
    many = bubbles(torch.ones(DRAWN + 1, 2, dtype=torch.int64), [f"client {k}" for k in range(DRAWN + 1)])
    labels = [label.get_text() for label in many.axes[0].get_xticklabels()]
    assert labels == [f"client {k}" for k in range(0, DRAWN, DRAWN // NAMED)]
    assert f"the first {DRAWN} of {DRAWN + 1}" in many.axes[0].get_title(loc="left")


def test_long_names_leave_room_for_two_classes() -> None:
    """Without a word of matplotlib, which warns where a layout cannot be made."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = bubbles(torch.ones(9, 2, dtype=torch.int64), ["Universitätsklinikum Nord"] * 9)
        figure.canvas.draw()
    assert figure.axes[0].get_window_extent().height >= 60  # pixels, of a plot of two classes


def test_cosines_are_blue_in_agreement_and_orange_in_conflict() -> None:
    """-1, 0 and 1 are the ends and the middle of the colours; what is no number has none, and grey shows through."""
    figure = draw_cosines([[1, -1], [0, float("nan")]], [4, 7])
    (image,) = figure.axes[0].images
    colours = image.to_rgba(image.get_array())
    red, _, blue, _ = colours[0, 0]
    assert blue > 2 * red
    red, _, blue, _ = colours[0, 1]
    assert red > 2 * blue
    assert colours[1, 0, :3].min() > 0.95
    assert colours[1, 1, 3] == 0
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["4", "7"]


def test_drawing_leaves_no_open_figure() -> None:
    from matplotlib import pyplot

    before = pyplot.get_fignums()  # perhaps of other tests
    draw_cosines(np.eye(2), [0, 1])
    assert pyplot.get_fignums() == before
    assert matplotlib.get_backend()  # none was chosen for the user


def picture(**losses: Any) -> Any:
    steps = np.linspace(-1, 1, 3)
    return draw_surfaces({title: {"steps": steps, "loss": np.array(loss, float)} for title, loss in losses.items()})


def test_surfaces_share_axes_and_colours() -> None:
    """From 1 to 100, spaced by factors; what is infinite or nan is as high as 100; the loss in the middle is named."""
    figure = picture(
        low=[[1, 2, 3], [4, 5, 6], [7, 8, np.inf]], high=[[10, 20, 30], [40, 0.5e2, 60], [70, np.nan, 100]]
    )
    *panels, _ = figure.axes
    assert [panel.get_title() for panel in panels] == ["low: 5", "high: 50"]
    for panel in panels:
        filled = panel.collections[0]
        assert (filled.levels[0], filled.levels[-1]) == pytest.approx((1, 100))
        assert filled.levels[1] / filled.levels[0] == pytest.approx(100 ** (1 / 15))
        assert (panel.get_xlim(), panel.get_ylim()) == ((-1, 1), (-1, 1))
    figure.canvas.draw()


def test_the_first_direction_goes_across() -> None:
    """A loss that grows along it alone: lines of equal loss are upright."""
    (panel, _) = picture(a=[[1, 1, 1], [2, 2, 2], [3, 3, 3]]).axes
    lines = [path.vertices for path in panel.collections[1].get_paths() if len(path.vertices)]
    assert lines
    assert all(np.ptp(line[:, 0]) == pytest.approx(0, abs=1e-9) for line in lines)


@pytest.mark.parametrize("loss", [[[-1, 0, 1]] * 3, [[2, 2, 2]] * 3, [[np.nan] * 3] * 3], ids=["signs", "flat", "nan"])
def test_any_surface_can_be_drawn(loss: Any) -> None:
    figure = picture(a=loss)
    figure.canvas.draw()
    assert figure.axes[0].get_title() == f"a: {loss[1][1]:.3g}"
