"""LossSurface around a model of one filter, by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.command import TINY, fit, fit_on
from lib.hand_made import Row
from lib.toy import Manual, ToyData, trainer
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import LossSurface
from fl_lightning.callbacks.monitors.curvature import random_directions
from fl_lightning.callbacks.monitors.surface import best_weights


class Two(FederatedDataModule):
    """Two clients with the weights 1 and 3 of a loss."""

    num_clients = 2

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.tensor([[1.0, 3.0][client]], dtype=torch.float64))


class Filter(LightningModule):
    """x w² / 4 at w = 2, which stays there, beside a bias: over both clients, w² / 2.

    Args:
        power: e^(w^power) is added, 0 for nothing.
    """

    def __init__(self, power: int = 0) -> None:
        super().__init__()
        self.power = power
        self.w = nn.Parameter(torch.full((1, 1), 2.0, dtype=torch.float64))
        self.bias = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = batch[0].mean() * self.w.square().sum() / 4 + self.bias.sum() - 3
        return loss + (self.w.sum() ** self.power).exp() if self.power else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def surfaces(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.name: dict(np.load(path)) for path in sorted((folder / "arrays").glob("surface_*"))}


def measured(folder: Path, *callbacks: Any, client: LightningModule | None = None, **settings: Any) -> Any:
    """The arrays of a run whose last round leaves some."""
    run = trainer(*callbacks, default_root_dir=folder, **settings)
    run.fit(FederatedOrchestrator(client or Filter(), on_bad_update="raise"), datamodule=Two())
    return surfaces(folder)


def test_by_hand(tmp_path: Path) -> None:
    """Both directions are ±2 in w and 0 in the bias: w = 2 + 2 k, k = ±i ± j, has the loss 2 (1 + k)².

    On steps of -1, 0, 1, k is -2 once, -1 twice, 0 thrice, 1 twice and 2 once: losses 2, 0, 2, 8 and 18.
    """
    (arrays,) = measured(tmp_path, LossSurface(points=3)).values()
    assert sorted(arrays["loss"].ravel()) == pytest.approx([0, 0, 2, 2, 2, 2, 8, 8, 18])
    assert arrays["loss"][1, 1] == pytest.approx(2)
    assert arrays["steps"].tolist() == [-1, 0, 1]


def test_the_minimum_and_how_flat_it_is(tmp_path: Path) -> None:
    """Of the same grid, in the run's metrics: 0 at a step of 1; the sides are 0 and 8, twice, and the model has 2."""
    found: dict[str, float] = {}
    measured(tmp_path, LossSurface(points=3), logger=Row(found))
    logged = {name: value for name, value in found.items() if name.startswith("surface/")}
    assert logged == pytest.approx({"surface/lowest": 0, "surface/away": 1, "surface/rise": 2}, abs=1e-6)


def test_rows_are_steps_along_the_first_direction(tmp_path: Path) -> None:
    """With the signs s and t of the directions, [i, j] has k = s·steps[i] + t·steps[j], up to 0.5 each."""
    signs = set()
    for seed in range(4):
        (arrays,) = measured(tmp_path, LossSurface(points=5, span=0.5, seed=seed)).values()
        steps = arrays["steps"]
        assert steps.tolist() == [-0.5, -0.25, 0, 0.25, 0.5]
        model = [torch.full((1, 1), 2.0, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
        s, t = (float(direction[0]) / 2 for direction in random_directions(model, seed))
        assert arrays["loss"] == pytest.approx(2 * (1 + s * steps[:, None] + t * steps) ** 2)
        signs.add((s, t))
    assert signs & {(1, -1), (-1, 1)}, "else rows and columns look the same"


@pytest.mark.parametrize(("every", "rounds", "expected"), [(0, 3, [3]), (2, 5, [2, 4, 5]), (9, 2, [2])])
def test_so_often_and_at_the_end(every: int, rounds: int, expected: list[int], tmp_path: Path) -> None:
    found = measured(tmp_path, LossSurface(every, points=3), rounds=rounds)
    assert list(found) == [f"surface_{round}.npz" for round in expected]


def test_losses_far_out_need_not_be_finite(tmp_path: Path) -> None:
    """The weight goes from -18 to 22, e^(w⁵) from 0 to infinity; the model's own 2 + e³² is there."""
    (arrays,) = measured(tmp_path, LossSurface(points=3, span=5), client=Filter(power=5)).values()
    assert np.isposinf(arrays["loss"]).any()
    assert arrays["loss"][1, 1] == pytest.approx(2 + math.exp(32))


def test_a_picture_for_loggers_that_take_some(tmp_path: Path) -> None:
    run = trainer(LossSurface(every=2, points=3), rounds=3, logger=TensorBoardLogger(tmp_path, name="", version=""))
    run.fit(FederatedOrchestrator(Filter()), datamodule=Two())
    written = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in written.Images("surface/loss")] == [2, 3]
    assert len(surfaces(tmp_path)) == 2


class Corners(Two):
    """Three clients, each at a corner; validation at (0.2, 0.3)."""

    num_clients = 3

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]][client]], dtype=torch.float64))

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.tensor([[0.2, 0.3]], dtype=torch.float64)))


class Drawn(LightningModule):
    """Half the squared distance to an example, where one step leads."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([5.0, -7.0], dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return (self.w - batch[0]).square().sum() / 2

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None: ...

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def test_the_plane_of_three_weights(tmp_path: Path) -> None:
    """The model of λ is (λ₁, λ₂), its loss ½ (λ₁ - 0.2)² + ½ (λ₂ - 0.3)². Client 0 alone is at √(2/3) along d₁.

    Half-way, λ₁ = λ₂ = 1/3 ∓ 1/6; along d₂ at the span's half λ₁ = 1/3 ± 1/√12 and λ₂ = 1/3 ∓ 1/√12: the loss rises by
    the mean of ½ (2/36) on both sides, and of ½ (2/12).
    """
    run = trainer(
        LossSurface(points=21, span=(2 / 3) ** 0.5, directions="weights"),
        default_root_dir=tmp_path,
        limit_val_batches=1,
    )
    run.fit(FederatedOrchestrator(Drawn(), on_bad_update="raise"), datamodule=Corners())
    assert not surfaces(tmp_path), "a report would call its directions random"
    loss = np.load(tmp_path / "arrays" / "plane_1.npz")["loss"]
    assert loss[10, 10] == pytest.approx(((1 / 3 - 0.2) ** 2 + (1 / 3 - 0.3) ** 2) / 2)
    assert loss[20, 10] == pytest.approx((0.2**2 + 0.3**2) / 2)
    assert loss[15, 10] == pytest.approx(((1 / 6 - 0.2) ** 2 + (1 / 6 - 0.3) ** 2) / 2)
    apart = 12**-0.5
    assert loss[10, 15] == pytest.approx(((1 / 3 + apart - 0.2) ** 2 + (1 / 3 - apart - 0.3) ** 2) / 2)
    logged = {name: float(value) for name, value in run.callback_metrics.items()}
    assert logged["surface/rise_1"] == pytest.approx(1 / 36)
    assert logged["surface/rise_2"] == pytest.approx(1 / 12)


def test_the_best_weights_are_not_negative() -> None:
    """Lowest in the corner of the grid, where λ₁ < 0; without that, at client 0 alone, then at client 1's end."""
    steps = np.linspace(-1, 1, 3) * (2 / 3) ** 0.5
    loss = np.array([[9, 5, 9], [9, 4, 9], [0, 3, 9]], dtype=float)
    assert best_weights(steps, loss) == pytest.approx([1, 0, 0])
    loss[2, 1] = np.nan
    assert best_weights(steps, loss) == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_refuses_a_plane_of_two_clients() -> None:
    with pytest.raises(ConfigurationError, match=r"directions weights needs 3 clients, got 2: set data.num_clients 3"):
        measured(Path(), LossSurface(directions="weights"))


SURFACE = "{class_path: LossSurface, init_args: {every: 2, points: 3}}"
HESSIAN = "{class_path: HessianMonitor, init_args: {every: 2}}"
WATCHED = ["--trainer.max_epochs", "3", "--trainer.callbacks", f"[{SURFACE}, {HESSIAN}]"]


@pytest.mark.slow
def test_devices_and_stops_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays and metrics, to the byte: of two devices in processes of their own, and of a run that is stopped."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    fit("--experiment", "whole", *WATCHED)
    fit("--experiment", "stopped", *WATCHED, "--trainer.max_epochs", 2)
    fit("--experiment", "stopped", *WATCHED, "--ckpt_path", "last")
    fit_on(2, "--experiment", "two", *WATCHED)
    one, *others = (Path("runs", name, "version_0") for name in ("whole", "stopped", "two"))
    assert list(surfaces(one)) == ["surface_2.npz", "surface_3.npz"]
    assert "hessian/ratio_1_5" in (one / "metrics.csv").read_text()
    for other in others:
        for file in (*(one / "arrays").glob("surface_*"), one / "metrics.csv"):
            assert file.read_bytes() == (other / file.relative_to(one)).read_bytes()


def test_refuses_a_run_without_end() -> None:
    with pytest.raises(ConfigurationError, match=r"max_epochs sets no last round: set .*, or every of LossSurface"):
        trainer(LossSurface(), rounds=-1).fit(FederatedOrchestrator(Filter()), datamodule=Two())


def test_refuses_a_module_that_optimizes_by_hand() -> None:
    with pytest.raises(ConfigurationError, match=r"LossSurface needs a training_step .* but Manual optimizes by hand"):
        trainer(LossSurface()).fit(FederatedOrchestrator(Manual()), datamodule=ToyData())
