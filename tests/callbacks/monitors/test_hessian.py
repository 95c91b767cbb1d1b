"""HessianMonitor on losses whose Hessian is known."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.toy import Manual, Quadratic, ToyData, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import HessianMonitor
from fl_lightning.engine.federation.batches import TrainingBatch


class Points(FederatedDataModule):
    """Inputs 1 on client 0; 1 and 2; 1, 2 and 4."""

    num_clients = 3

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.tensor([[1.0], [2.0], [4.0]][: client + 1]))


class Line(LightningModule):
    """The mean of (x w)² / 2 over a batch: of the Hessian mean(x²)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return (self.layer(batch[0]) ** 2).mean() / 2

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def hessian(
    client: LightningModule, data: Any, monitor: HessianMonitor | None = None, seed: int = 0, **settings: Any
) -> dict[str, float]:
    """What a monitor logs, by default one that measures every round."""
    run = trainer(monitor or HessianMonitor(every=1), **settings)
    run.fit(FederatedOrchestrator(client, on_bad_update="raise", seed=seed), datamodule=data)
    named = ("hessian/", "parameters/", "profile/")
    return {name: float(value) for name, value in run.callback_metrics.items() if name.startswith(named)}


def first(*given: Any, **settings: Any) -> float:
    """The largest eigenvalue."""
    return hessian(*given, **settings)["hessian/eigenvalue_1"]


def test_over_all_clients_examples() -> None:
    """Two examples of diag(1, 2) and three of diag(3, 0.5): (2 + 9) / 5 and (4 + 1.5) / 5. Two have no fifth.

    T's clients end in (0.19, -0.36) and (-1.314, 0.28525), which weigh 1 and 3 examples of four.
    """
    logged = hessian(Quadratic(), ToyData())
    model = ((0.19 - 3 * 1.314) / 4, (-0.36 + 3 * 0.28525) / 4)
    assert logged.pop("parameters/norm") == pytest.approx(math.hypot(*model))
    assert {name: logged[name] for name in logged if name.startswith("hessian/")} == pytest.approx(
        {"hessian/eigenvalue_1": 2.2, "hessian/eigenvalue_2": 1.1}
    )


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_every_example_counts_the_same(batch_size: int) -> None:
    """x² of 1; 1, 4; 1, 4, 16: 27 / 6, however they fall into batches."""
    assert first(Line(), Points(batch_size=batch_size)) == pytest.approx(4.5)


def test_a_sample_is_drawn_once() -> None:
    """Two examples of six: a mean of two of those squares, the same in every round, another by another seed."""
    squares = [1, 1, 4, 1, 4, 16]
    pairs = {(squares[i] + squares[j]) / 2 for i in range(6) for j in range(i)}
    monitor = HessianMonitor(every=1, examples=2)
    seen = [[round(first(Line(), Points(), monitor, seed, rounds=n), 4) for n in (1, 2)] for seed in range(3)]
    assert all(one == other for one, other in seen)
    assert {one for one, _ in seen} <= pairs
    assert len({one for one, _ in seen}) > 1


class Saddle(LightningModule):
    """Σ a_i w_i² / 2."""

    def __init__(self, *curvature: float) -> None:
        super().__init__()
        self.register_buffer("curvature", torch.tensor(curvature))
        self.w = nn.Parameter(torch.ones(len(curvature)))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return {"loss": (self.curvature * self.w**2).sum() / 2}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def curvature(*given: float, count: int = 5) -> list[float]:
    """What is logged of such a saddle, without the norm."""
    every = hessian(Saddle(*given), Points(), HessianMonitor(1, count=count))
    logged = {name: value for name, value in every.items() if name.startswith("hessian/")}
    assert list(logged) == [f"hessian/eigenvalue_{i}" for i in range(1, 1 + min(count, len(given)))] + [
        "hessian/ratio_1_5"
    ] * (len(logged) > min(count, len(given)))
    return list(logged.values())


def test_parameters_near_zero_and_rescaled() -> None:
    """w_i shrinks by a_i / 10 in each step: to 1, (0.9 + 2 · 0.81 + 3 · 0.729) / 6, 0. Client k takes k + 1 steps.

    At 0.9 w the loss is 81 % of itself.
    """
    logged = hessian(Saddle(0, 1, 10), Points(batch_size=1))
    ends = [1.0, (0.9 + 2 * 0.81 + 3 * 0.729) / 6, 0.0]
    assert logged["parameters/near_zero"] == pytest.approx(1 / 3)
    assert logged["parameters/norm"] == pytest.approx(math.hypot(*ends))
    assert logged["parameters/loss_rescaled"] == pytest.approx(-0.19 * ends[1] ** 2 / 2)


def test_signs_and_the_ratio() -> None:
    """Of 1, 2, 4, 6, -8, 10 the largest magnitude first; 10 / 2. With a fifth of zero, or none, there is no ratio."""
    assert curvature(1, 2, 4, 6, -8, 10) == pytest.approx([10, -8, 6, 4, 2, 5])
    assert curvature(1, 2, 3, 4, 5, 6, count=2) == pytest.approx([6, 5])
    assert curvature(1, 2, 3, 4, 5, 6, count=6) == pytest.approx([6, 5, 4, 3, 2, 1, 3])
    assert curvature(3, 2, 1, 1, 0) == pytest.approx([3, 2, 1, 1, 0])


class Dropped(Line):
    """Drops inputs and doubles the others, and normalises by the batch: unless it predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1, affine=False, momentum=0.0))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return super().training_step([self.before(batch[0])], batch_idx)


class Alone(Points):
    num_clients = 1

    def client_dataset(self, client: int) -> Dataset[Any]:
        return super().client_dataset(2)


def test_of_the_model_as_it_predicts() -> None:
    """Running mean 0 and variance 1 stay: inputs are what they were, 21 / 3. A batch's own statistics would give 1."""
    assert first(Dropped(), Alone()) == pytest.approx(7, rel=1e-4)  # BatchNorm's epsilon


class Augmented(Points):
    """Training batches are blanked out."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [0 * batch[0]] if isinstance(batch, TrainingBatch) else [2 * batch[0]]


def test_through_the_transfer_hooks_without_augmentation() -> None:
    """Doubled inputs: 4 · 27 / 6."""
    assert first(Line(), Augmented()) == pytest.approx(18)


class Fine(Points):
    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.full((4, 1), 1.001))


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_in_full_precision(precision: Any) -> None:
    """1.001² = 1.002001; in bfloat16, 1.001 is 1."""
    assert first(Line(), Fine(), precision=precision) == pytest.approx(1.002001, abs=1e-6)


class Attention(Line):
    """Its fast kernels can be differentiated once."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        heads = self.layer(batch[0]).view(1, 1, -1, 1)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads).mean()


def test_attention() -> None:
    assert math.isfinite(first(Attention(), Points()))


class Kept(Points):
    """Validates on the input 3."""

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.tensor([[3.0]])))


class Still(Line):
    """Stays at 0.2."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.layer.weight, 0.2)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def test_profile(tmp_path: Path) -> None:
    """Of x²: 4.5 w² / 2 in training, 9 w² / 2 in validation, at w = 0.2 f and at w = 0.2 ± s. Only ±1 has length 1."""
    logged = hessian(Still(), Kept(), HessianMonitor(1, points=5), default_root_dir=tmp_path)
    assert logged["profile/loss"] == pytest.approx(0.18)
    assert logged["profile/loss_rescaled"] == pytest.approx(0.81 * 0.18)
    arrays = np.load(tmp_path / "arrays" / "profile_1.npz")
    factors, steps = np.array([0.5, 0.75, 1, 1.25, 1.5]), np.array([-1, -0.5, 0, 0.5, 1])
    assert arrays["factors"] == pytest.approx(factors)
    assert arrays["steps"] == pytest.approx(steps)
    for name, curvature in (("train", 4.5), ("val", 9.0)):
        assert arrays[f"{name}_by_factor"] == pytest.approx(curvature / 2 * (0.2 * factors) ** 2, rel=1e-5)
        by_step = curvature / 2 * (0.2 + steps) ** 2
        assert sorted(arrays[f"{name}_by_step"]) == pytest.approx(sorted(by_step), rel=1e-4)
    assert arrays["values"][arrays["share"] == 1] == pytest.approx([0.2])
    assert arrays["share"].sum() == 1


def test_no_profile_unless_asked(tmp_path: Path) -> None:
    assert not [name for name in hessian(Still(), Kept(), default_root_dir=tmp_path) if name.startswith("profile/")]
    assert not list(tmp_path.rglob("profile_*"))


class Hidden(Line):
    """Shows its loss to clients alone."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) if self.training else None


@pytest.mark.parametrize(
    ("client", "message"),
    [(Manual(), r"HessianMonitor needs a training_step .* but Manual optimizes by hand"), (Hidden(), "got NoneType")],
)
def test_refuses_a_module_without_a_loss(client: LightningModule, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hessian(client, Points())
