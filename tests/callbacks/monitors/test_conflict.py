"""ConflictMonitor's measures of g₁ = (2, 0), g₂ = (-1, 1), g₃ = (-1, -2), by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rules
import torch
from command import TINY, fit, fit_on
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from toy import UPDATES, GivenData, Linear, Quadratic, ToyData, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import (
    ClientMonitor,
    CoherenceMonitor,
    ConflictMonitor,
    CoordinateMedian,
    FedAvg,
    FedGAM,
    FedLAW,
    FedNova,
    GradientHarmonization,
    Scaffold,
)
from fl_lightning.runs.pictures import draw_cosines

COSINE_12, COSINE_13, COSINE_23 = -2 / (4 * 2) ** 0.5, -2 / (4 * 5) ** 0.5, -1 / (2 * 5) ** 0.5  # g_i·g_j by norms
BEFORE = {
    "conflict/ratio": 3 / 3,
    "conflict/min_cosine": COSINE_12,
    "conflict/mean_cosine": (COSINE_12 + COSINE_13 + COSINE_23) / 3,
    "conflict/weighted_ratio": 1.0,
}


def conflict(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if name.startswith("conflict/")}


@pytest.mark.parametrize("monitor_first", [False, True])
def test_before_and_after_harmonization(monitor_first: bool, tmp_path: Path) -> None:
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
    rules = [GradientHarmonization(order="ascending"), ConflictMonitor()]
    run = trainer(*(rules[::-1] if monitor_first else rules), logger=CSVLogger(tmp_path), log_every_n_steps=1)
    data = GivenData(-torch.tensor(UPDATES, dtype=torch.float64), samples=[1, 1, 2])
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    assert conflict(run.callback_metrics) == pytest.approx(expected, abs=1e-6)
    assert conflict(run.logged_metrics) == pytest.approx(expected, abs=1e-6)


def measured(updates: Any, *rules: Any, samples: Any = None) -> dict[str, float]:
    """What a round of clients with given updates logs."""
    run = trainer(*rules)
    data = GivenData(-torch.as_tensor(updates, dtype=torch.float64), samples)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    return conflict(run.callback_metrics)


def test_without_a_rule_nothing_changes_after() -> None:
    after = {f"{name}_after": value for name, value in BEFORE.items() if "weighted" not in name}
    unchanged = {"conflict/removed": 0.0, "conflict/angle": 0.0}
    assert measured(UPDATES, ConflictMonitor()) == pytest.approx(BEFORE | after | unchanged, abs=1e-6)


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 2 / 5), ("uniform", 1 / 3)])
def test_pairs_count_by_the_final_weights(weighting: Any, expected: float) -> None:
    """(2, 0), (-1, 1), (1, 2): only the first two conflict. n = (2, 1, 1): 1/8 of 1/8 + 1/8 + 1/16."""
    updates = [[2, 0], [-1, 1], [1, 2]]
    logged = measured(updates, FedAvg(weighting), ConflictMonitor(), samples=[2, 1, 1])
    assert logged["conflict/weighted_ratio"] == pytest.approx(expected)
    assert logged["conflict/ratio"] == pytest.approx(1 / 3)


def test_no_angle_to_nothing_nor_of_a_sum_that_is_not_taken() -> None:
    """(1, 0) and (-1, 0) cancel, and nothing was removed; zero updates cannot lose anything; a median is no sum."""
    names = {"conflict/angle", "conflict/removed"}
    opposite = measured([[1, 0], [-1, 0]], ConflictMonitor())
    assert names & opposite.keys() == {"conflict/removed"}
    assert opposite["conflict/removed"] == 0.0
    assert names.isdisjoint(measured([[0, 0], [0, 0]], ConflictMonitor()))
    assert names & measured(UPDATES, ConflictMonitor(), CoordinateMedian()).keys() == {"conflict/removed"}


class Parts(Linear):
    """Five trainable numbers: two of the module itself, a weight (1, 2) and a bias of a layer; and a frozen layer."""

    def __init__(self) -> None:
        super().__init__(size=2)
        self.net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(2, 1)).double()
        self.net[0].requires_grad_(False)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        layer = self.net[2]
        return (torch.cat([self.w, layer.weight.flatten(), layer.bias]) * batch[0]).sum()  # type: ignore[list-item, operator]  # of a Linear


def test_each_layer_has_its_own_ratio(tmp_path: Path) -> None:
    """Products of the first parts: -1, 1, -1; of the layer's: 0.5 (biases alone -0.5), 5, 3.5; of all: -0.5, 6, 2.5."""
    updates = [[1, 0, 1, 0, 1], [-1, 0, 1, 0, -0.5], [1, 0, 4, 0, 1]]
    logged = {}
    for monitor in (ConflictMonitor(), ConflictMonitor(layers=True)):
        run = trainer(monitor, default_root_dir=tmp_path)
        run.fit(FederatedOrchestrator(Parts()), datamodule=GivenData(-torch.tensor(updates, dtype=torch.float64)))
        logged[monitor.layers] = conflict(run.callback_metrics)
    layers = {"conflict/layer/w": 2 / 3, "conflict/layer/net.2": 0.0}
    assert logged[True] == pytest.approx(logged[False] | layers)
    assert logged[True]["conflict/ratio"] == pytest.approx(1 / 3)


RULES: dict[str, Any] = {
    "FedAvg": lambda: [FedAvg()],
    "FedNova, GH": lambda: [FedNova(), GradientHarmonization()],
    "FedLAW": lambda: [FedLAW(epochs=10)],
    "FedGAM": lambda: [FedGAM()],
    "SCAFFOLD": lambda: [Scaffold()],
}


@pytest.mark.parametrize("name", RULES)
def test_does_not_change_the_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and buffers are equal bit for bit, wherever the monitors stand."""
    monkeypatch.chdir(tmp_path)
    plain = rules.run(*RULES[name](), rounds=3)
    monitors = [ConflictMonitor(every=1, layers=True), CoherenceMonitor(), ClientMonitor()]
    for watched in ([*monitors, *RULES[name]()], [*RULES[name](), *monitors]):
        state = rules.run(*watched, rounds=3).state_dict()
        assert all(torch.equal(state[key], value) for key, value in plain.state_dict().items())
    files = saved(tmp_path)
    assert list(files) == [*(f"cosines_{n}.npz" for n in (1, 2, 3)), "layers.npz"]
    assert files["layers.npz"]["names"].tolist() == ["net.0", "net.1"]


def test_one_client_logs_and_writes_nothing(tmp_path: Path) -> None:
    run = trainer(ConflictMonitor(every=1), default_root_dir=tmp_path)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=GivenData(torch.ones(1, 2, dtype=torch.float64)))
    assert conflict(run.callback_metrics) == {}
    assert saved(tmp_path) == {}


def saved(folder: Path) -> dict[str, dict[str, Any]]:
    """Name and content of all that lies in ``arrays``."""
    return {path.name: dict(np.load(path)) for path in sorted((folder / "arrays").glob("*"))}


def test_saves_the_cosines_of_all_pairs(tmp_path: Path) -> None:
    """As above: -1/√2, -1/√5, -1/√10; harmonised -1, -1/√10, 1/√10. Client 0 has no data and is no row."""
    rows = torch.tensor([[5.0, 5.0], *([-x for x in update] for update in UPDATES)], dtype=torch.float64)
    rules = [GradientHarmonization(order="ascending"), ConflictMonitor(every=1)]
    run = trainer(*rules, default_root_dir=tmp_path)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=GivenData(rows, samples=[0, 1, 1, 1]))
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
    run = trainer(ConflictMonitor(every), rounds=rounds, default_root_dir=tmp_path)
    run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    assert list(saved(tmp_path)) == [f"cosines_{round}.npz" for round in expected]


def test_shows_the_cosines_to_loggers_that_take_pictures(tmp_path: Path) -> None:
    run = trainer(ConflictMonitor(every=2), rounds=3, logger=TensorBoardLogger(tmp_path))
    run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    events = EventAccumulator(str(run.log_dir))
    events.Reload()
    assert [event.step for event in events.Images("conflict/cosines")] == [2, 3]


def test_the_picture_has_the_clients_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files keep the numbers."""
    shown = []

    def drawn(matrix: Any, clients: Any) -> Any:
        shown.append(list(clients))
        return draw_cosines(matrix, clients)

    monkeypatch.setattr("fl_lightning.callbacks.monitors.conflict.draw_cosines", drawn)
    for names in (None, ["oslo", "rome"]):
        run = trainer(ConflictMonitor(every=1), logger=TensorBoardLogger(tmp_path))
        run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData(client_names=names))
    assert shown == [[0, 1], ["oslo", "rome"]]
    assert all(arrays["clients"].tolist() == [0, 1] for arrays in saved(Path(str(run.log_dir))).values())


MONITOR = "[{class_path: ConflictMonitor, init_args: {every: 2}}, {class_path: GradientHarmonization}]"
WATCHED = ["--trainer.max_epochs", "4", "--trainer.callbacks", MONITOR]


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The arrays of a run of four rounds on one device."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    fit("--experiment", "whole", *WATCHED)
    return Path("runs/whole/version_0/arrays")


def assert_same_files(one: Path, other: Path) -> None:
    first, second = ({path.name: path.read_bytes() for path in each.glob("cosines_*")} for each in (one, other))
    assert sorted(first) == ["cosines_2.npz", "cosines_4.npz"]
    assert first == second


def test_a_stopped_run_saves_what_a_whole_one_does(whole: Path) -> None:
    """To the byte: stopped after round 3, it goes on."""
    fit("--experiment", "stopped", *WATCHED, "--trainer.max_epochs", 3)
    stopped = Path("runs/stopped/version_0/arrays")
    (stopped / "cosines_3.npz").unlink()  # then the last
    fit("--experiment", "stopped", *WATCHED, "--ckpt_path", "last")
    assert_same_files(whole, stopped)


def test_two_devices_save_what_one_does(whole: Path) -> None:
    """To the byte, in processes of their own."""
    fit_on(2, "--experiment", "two", *WATCHED)
    assert_same_files(whole, Path("runs/two/version_0/arrays"))


@pytest.mark.parametrize("every", [-1, math.nan])
def test_refuses_what_is_no_number_of_rounds(every: Any) -> None:
    with pytest.raises(ConfigurationError, match="every must be a number of rounds, 0 for never, got"):
        ConflictMonitor(every)
