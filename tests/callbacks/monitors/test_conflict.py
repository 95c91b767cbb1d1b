"""ConflictMonitor's measures of g₁ = (2, 0), g₂ = (-1, 1), g₃ = (-1, -2), by hand."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.command import TINY, fit, fit_on
from lib.hand_made import serve
from lib.toy import UPDATES, GivenData, Linear
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from fl_lightning.callbacks import ConflictMonitor, CoordinateMedian, FedAvg, GradientHarmonization
from fl_lightning.runs.pictures import draw_cosines

COSINE_12, COSINE_13, COSINE_23 = -2 / (4 * 2) ** 0.5, -2 / (4 * 5) ** 0.5, -1 / (2 * 5) ** 0.5  # g_i·g_j by norms
BEFORE = {
    "conflict/ratio": 3 / 3,
    "conflict/min_cosine": COSINE_12,
    "conflict/mean_cosine": (COSINE_12 + COSINE_13 + COSINE_23) / 3,
    "conflict/weighted_ratio": 1.0,
}


def measured(updates: Any, *callbacks: Any, **settings: Any) -> dict[str, float]:
    """What is logged of the conflicts."""
    logged = serve(updates, *callbacks, **settings)[0].logged
    return {name: value for name, value in logged.items() if name.startswith("conflict/")}


@pytest.mark.parametrize("monitor_first", [False, True])
def test_before_and_after_harmonization(monitor_first: bool) -> None:
    """Measure the conflicts of three updates before and after harmonization, wherever the monitor is in the list."""
    g1, g2, g3 = torch.tensor(UPDATES, dtype=torch.float64)
    h1 = g1 + 2 / 2 * g2 + 3 / 5 * g3  # harmonised: off g₂, then off g₃: (0.4, -0.2)
    h2 = g2 + 2 / 4 * g1 + 2 / 5 * g3  # off g₁, then off g₃: (-0.4, 0.2)
    h3 = g3 + 2 / 4 * g1 + 2 / 2 * g2  # off g₁, then off g₂: (-1, -1)
    cosine_12, cosine_13, cosine_23 = -0.2 / 0.2, -0.2 / (0.2 * 2) ** 0.5, 0.2 / (0.2 * 2) ** 0.5  # ‖h‖² = 0.2, 0.2, 2
    removed = [float((g1 - h1).norm()) / 2, float((g2 - h2).norm()) / 2**0.5, float((g3 - h3).norm()) / 5**0.5]
    assert removed == pytest.approx([2.6**0.5 / 2, 1 / 2**0.5, 1 / 5**0.5])  # by hand
    given, corrected = (g1 + g2 + 2 * g3) / 4, (h1 + h2 + 2 * h3) / 4  # (-1/4, -3/4) and (-1/2, -1/2)
    cosine = float(given @ corrected / (given.norm() * corrected.norm()))
    assert cosine == pytest.approx(2 / 5**0.5)  # by hand
    expected = BEFORE | {
        "conflict/ratio_after": 2 / 3,
        "conflict/min_cosine_after": cosine_12,
        "conflict/mean_cosine_after": (cosine_12 + cosine_13 + cosine_23) / 3,
        "conflict/removed": sum(removed) / 3,
        "conflict/angle": math.degrees(math.acos(cosine)),
    }
    chain = [GradientHarmonization(order="ascending"), ConflictMonitor()]
    assert measured(UPDATES, *(chain[::-1] if monitor_first else chain), samples=[1, 1, 2]) == pytest.approx(expected)


def test_without_a_rule_nothing_changes_after() -> None:
    after = {f"{name}_after": value for name, value in BEFORE.items() if "weighted" not in name}
    unchanged = {"conflict/removed": 0.0, "conflict/angle": 0.0}
    assert measured(UPDATES, ConflictMonitor()) == pytest.approx(BEFORE | after | unchanged, abs=1e-6)


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 2 / 5), ("uniform", 1 / 3)])
def test_pairs_count_by_the_final_weights(weighting: Any, expected: float) -> None:
    """(2, 0), (-1, 1), (1, 2): only the first two conflict. n = (2, 1, 1): 1/8 of 1/8 + 1/8 + 1/16."""
    logged = measured([[2, 0], [-1, 1], [1, 2]], FedAvg(weighting), ConflictMonitor(), samples=[2, 1, 1])
    assert logged["conflict/weighted_ratio"] == pytest.approx(expected)
    assert logged["conflict/ratio"] == pytest.approx(1 / 3)


def test_no_angle_to_nothing_nor_of_a_sum_that_is_not_taken(tmp_path: Path) -> None:
    """(1, 0) and (-1, 0) cancel, and nothing was removed; zero updates cannot lose anything; a median is no sum.

    One client alone logs and writes nothing.
    """
    names = {"conflict/angle", "conflict/removed"}
    opposite = measured([[1, 0], [-1, 0]], ConflictMonitor())
    assert names & opposite.keys() == {"conflict/removed"}
    assert opposite["conflict/removed"] == 0.0
    assert names.isdisjoint(measured([[0, 0], [0, 0]], ConflictMonitor()))
    assert names & measured(UPDATES, ConflictMonitor(), CoordinateMedian()).keys() == {"conflict/removed"}
    assert not measured([[1, 1]], ConflictMonitor(every=1), default_root_dir=tmp_path)
    assert not saved(tmp_path)


def test_signs_in_conflict() -> None:
    """The first weight goes up thrice; the second up, down, down; the third up, down, not at all; the fourth nowhere.

    Some clients disagree on two of four weights, and 2 and 1 of three pairs do: (2/3 + 1/3) / 4. Harmonization makes no
    difference: the updates are those before correction.
    """
    updates = [[1.0, 2.0, 3.0, 0.0], [2.0, -1.0, -5.0, 0.0], [1.0, -4.0, 0.0, 0.0]]
    for rules in ([], [GradientHarmonization(order="ascending")]):
        logged = measured(updates, *rules, ConflictMonitor(signs=True))
        assert logged["conflict/sign"] == 1 / 2
        assert logged["conflict/sign_pairs"] == pytest.approx(1 / 4)
    assert not [name for name in measured(updates, ConflictMonitor()) if "sign" in name]


class Parts(Linear):
    """Five trainable numbers: two of the module itself, a weight (1, 2) and a bias of a layer; and a frozen layer."""

    def __init__(self) -> None:
        super().__init__(size=2)
        self.net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(2, 1)).double()
        self.net[0].requires_grad_(False)


def test_each_layer_has_its_own_ratio(tmp_path: Path) -> None:
    """Products of the first parts: -1, 1, -1; of the layer's: 0.5 (biases alone -0.5), 5, 3.5; of all: -0.5, 6, 2.5."""
    updates = [[1, 0, 1, 0, 1], [-1, 0, 1, 0, -0.5], [1, 0, 4, 0, 1]]
    without, with_layers = (
        measured(updates, ConflictMonitor(layers=layers), client=Parts(), default_root_dir=tmp_path)
        for layers in (False, True)
    )
    assert with_layers == pytest.approx(without | {"conflict/layer/w": 2 / 3, "conflict/layer/net.2": 0.0})
    assert with_layers["conflict/ratio"] == pytest.approx(1 / 3)
    assert saved(tmp_path)["layers.npz"]["names"].tolist() == ["w", "net.2"]


@pytest.mark.parametrize(
    ("updates", "before", "after"),
    [
        ([[2, 0, 1, 0, 0], [-1, 1, -2, 0, 1]], (1.0, 1.0), (0.0, 0.0)),
        ([[1, 0, 2, 0, 0], [-1, 0, 0, 0, 2]], (1.0, 0.0), (1.0, 0.0)),
    ],
)
def test_layers_after_correction(
    updates: Any, before: tuple[float, float], after: tuple[float, float], tmp_path: Path
) -> None:
    """Harmonization takes the conflict of whole updates away, and that of a layer may stay.

    First -2 in both layers, -4 in all, ‖g₁‖² = 5, ‖g₂‖² = 7: h₁ = g₁ + 4/7 g₂, h₂ = g₂ + 4/5 g₁. The parts of w are
    (10/7, 4/7) and (3/5, 1), with the product 10/7; those of the layer (-1/7, 0, 4/7) and (-6/5, 0, 1), with 26/35.
    Then -1 and 0, both squares 5: h₁ = g₁ + 1/5 g₂, h₂ = g₂ + 1/5 g₁. In w 0.8 and -0.8; in the layer (2, 0, 0.4) and
    (0.4, 0, 2).
    """
    chain = [GradientHarmonization(order="ascending"), ConflictMonitor(layers=True)]
    logged = measured(updates, *chain, client=Parts(), default_root_dir=tmp_path)
    layers = {name: value for name, value in logged.items() if "/layer" in name}
    names = [f"conflict/{kind}/{layer}" for kind in ("layer", "layer_after") for layer in ("w", "net.2")]
    assert layers == dict(zip(names, [*before, *after], strict=True))
    assert logged["conflict/ratio_after"] == 0


def test_layers_have_no_second_ratio_in_rounds_without_correction(tmp_path: Path) -> None:
    """Nothing conflicts, so that harmonization leaves the updates as they are."""
    chain = [GradientHarmonization(), ConflictMonitor(layers=True)]
    logged = measured([[1, 0, 1, 0, 1], [1, 0, 1, 0, 1]], *chain, client=Parts(), default_root_dir=tmp_path)
    assert {name for name in logged if "/layer" in name} == {"conflict/layer/w", "conflict/layer/net.2"}


def saved(folder: Path) -> dict[str, dict[str, Any]]:
    """Name and content of all that lies in ``arrays``."""
    return {path.name: dict(np.load(path)) for path in sorted((folder / "arrays").glob("*"))}


def test_saves_the_cosines_of_all_pairs(tmp_path: Path) -> None:
    """As above: -1/√2, -1/√5, -1/√10; harmonised -1, -1/√10, 1/√10. Client 0 has no data and is no row."""
    chain = [GradientHarmonization(order="ascending"), ConflictMonitor(every=1)]
    measured([[5.0, 5.0], *UPDATES], *chain, samples=[0, 1, 1, 1], default_root_dir=tmp_path)
    (arrays,) = saved(tmp_path).values()
    assert arrays["clients"].tolist() == [1, 2, 3]
    for name, (one, two, three) in {
        "before": (-(0.5**0.5), -(0.2**0.5), -(0.1**0.5)),
        "after": (-1, -(0.1**0.5), 0.1**0.5),
    }.items():
        assert arrays[name] == pytest.approx(np.array([[1, one, two], [one, 1, three], [two, three, 1]]))


@pytest.mark.parametrize(
    ("every", "rounds", "expected"), [(0, 5, []), (2, 5, [2, 4, 5]), (2, 4, [2, 4]), (9, 5, [5]), (1, 2, [1, 2])]
)
def test_saves_so_often_and_at_the_end(every: int, rounds: int, expected: list[int], tmp_path: Path) -> None:
    measured(UPDATES, ConflictMonitor(every), rounds=rounds, default_root_dir=tmp_path)
    assert list(saved(tmp_path)) == [f"cosines_{round}.npz" for round in expected]


def test_loggers_that_take_pictures_get_the_cosines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have their names in the picture, and their numbers in the files."""
    shown = []

    def drawn(matrix: Any, clients: Any) -> Any:
        shown.append(list(clients))
        return draw_cosines(matrix, clients)

    monkeypatch.setattr("fl_lightning.callbacks.monitors.conflict.draw_cosines", drawn)
    for names in (None, ["oslo", "rome", "lima"]):
        data, folder = partial(GivenData, client_names=names), tmp_path / str(bool(names))
        logger = TensorBoardLogger(folder, name="", version="")
        measured(UPDATES, ConflictMonitor(every=2), data=data, rounds=3, logger=logger)
        logger.finalize("success")
        events = EventAccumulator(str(folder)).Reload()
        assert [event.step for event in events.Images("conflict/cosines")] == [2, 3]
    assert shown == [[0, 1, 2]] * 2 + [["oslo", "rome", "lima"]] * 2
    assert all(arrays["clients"].tolist() == [0, 1, 2] for arrays in saved(folder).values())


MONITOR = "[{class_path: ConflictMonitor, init_args: {every: 2}}, {class_path: GradientHarmonization}]"
WATCHED = ["--trainer.max_epochs", "4", "--trainer.callbacks", MONITOR]


@pytest.mark.slow
def test_a_stop_and_two_devices_save_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after round 3, which was then the last; two devices in processes of their own."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    fit("--experiment", "whole", *WATCHED)
    fit("--experiment", "stopped", *WATCHED, "--trainer.max_epochs", 3)
    Path("runs/stopped/version_0/arrays/cosines_3.npz").unlink()
    fit("--experiment", "stopped", *WATCHED, "--ckpt_path", "last")
    fit_on(2, "--experiment", "two", *WATCHED)
    whole, *others = (
        {path.name: path.read_bytes() for path in Path("runs", name, "version_0/arrays").glob("cosines_*")}
        for name in ("whole", "stopped", "two")
    )
    assert sorted(whole) == ["cosines_2.npz", "cosines_4.npz"]
    assert all(other == whole for other in others)
