"""Draws are keyed by what they are for, and leave all others alone, in training and in an evaluation."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.toy import Capture, Linear, Quadratic, ToyData, trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.seeding import derive, generator, isolated, numpy_generator, seed_globals

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    """One number of each global generator."""
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_derived_seeds_are_the_same_in_every_process() -> None:
    """``printf 0:client:1:2 | b2sum -l 32`` prints f2 20 b5 73: the lowest byte first, 0x73b520f2."""
    assert derive(0, "client", 1, 2) == 0x73B520F2
    assert derive(7, "cohort", 3) == 0xDC24A148


def test_every_part_of_the_key_counts() -> None:
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 0, 1), (0, "a", 1, 0), (0, "a", 11)]
    seeds = {derive(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_generators_depend_on_the_key_alone() -> None:
    first = torch.rand(4, generator=generator(0, "batches", 1, 2)), numpy_generator(0, "partition").random(4)
    draw()
    seed_globals(5, CPU)
    again = torch.rand(4, generator=generator(0, "batches", 1, 2)), numpy_generator(0, "partition").random(4)
    other = torch.rand(4, generator=generator(0, "batches", 2, 1)), numpy_generator(1, "partition").random(4)
    assert torch.equal(first[0], again[0])
    assert (first[1] == again[1]).all()
    assert not torch.equal(first[0], other[0])
    assert not (first[1] == other[1]).any()


def test_seed_globals_seeds_all_three() -> None:
    with isolated(CPU):
        seed_globals(2**32 - 1, CPU)
        first = draw()
        seed_globals(2**32 - 1, CPU)
        assert draw() == first
        seed_globals(0, CPU)
        assert all(a != b for a, b in zip(draw(), first, strict=True))


def draw_and_raise() -> None:
    with isolated(CPU):
        seed_globals(99, CPU)
        draw()
        raise ValueError("inside")


def test_isolated_leaves_the_global_generators_as_they_were() -> None:
    with isolated(CPU):
        seed_globals(3, CPU)
        expected = [draw() for _ in range(2)]
        seed_globals(3, CPU)
        assert draw() == expected[0]
        with pytest.raises(ValueError, match="inside"):
            draw_and_raise()
        assert draw() == expected[1]


class Augmented(Dataset[Any]):
    """Six examples, shifted by draws from all three global generators."""

    def __init__(self, client: int) -> None:
        self.client = client

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shift = torch.tensor(draw(), dtype=torch.float64)
        return self.client + index + shift, shift[:1]


class AugmentedData(FederatedDataModule):
    num_clients = 2

    def client_dataset(self, client: int) -> Dataset[Any]:
        return Augmented(client)


class Dropping(Linear):
    """Draws in every step, as dropout does: loading an example must not disturb that."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * float(torch.rand(()) < 0.5)


def updates(**settings: Any) -> list[Tensor]:
    """(2, 3) what the two clients send in each of two rounds."""
    capture = Capture()
    run = trainer(capture, rounds=2)
    run.fit(
        FederatedOrchestrator(Dropping(3, lr=0.1, momentum=0.9)), datamodule=AugmentedData(batch_size=2, **settings)
    )
    return [cohort.deltas for cohort in capture.cohorts]


def test_augmentation_does_not_depend_on_workers_nor_on_other_draws() -> None:
    first = updates()
    draw()
    for other in (updates(), updates(num_workers=2), updates(clients_per_batch=2)):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_augmentation_is_drawn_anew_for_each_client_and_round() -> None:
    """Without it, both clients' updates would differ by their offset alone, and both rounds' be equal."""
    first, second = updates()
    assert not torch.equal(first, second)
    offset = first[1] - first[0]
    assert float((offset - offset[0]).abs().max()) > 1e-3


class Samples(Quadratic):
    """Draws a number in every evaluation, as a variational autoencoder does, and notes all that it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.drawn.append(float(torch.rand(())))

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)


class Evaluated(ToyData):
    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.zeros(2)), generator=torch.Generator())

    test_dataloader = predict_dataloader = val_dataloader


def drawn(rounds: int, seed: int = 0, start: Path | None = None, end: Path | None = None) -> list[float]:
    module, run = Samples(), trainer(rounds=rounds)
    run.fit(FederatedOrchestrator(module, seed=seed), datamodule=Evaluated(), ckpt_path=start)
    if end:
        run.save_checkpoint(end)
    return module.drawn


def test_a_stop_changes_no_draw(tmp_path: Path) -> None:
    """Two numbers a round, others in each round, whatever the global generator did before."""
    whole = drawn(2)
    assert len(set(whole)) == 4
    torch.rand(())
    assert drawn(1, end=tmp_path / "round_1.ckpt") + drawn(2, start=tmp_path / "round_1.ckpt") == whole
    assert set(drawn(2, seed=1)).isdisjoint(whole)


def test_the_global_generator_goes_on_as_if_nothing_was_drawn() -> None:
    module = Samples()
    orchestrator = FederatedOrchestrator(module)
    trainer().fit(orchestrator, datamodule=Evaluated())
    expected = torch.get_rng_state()
    for evaluate in ("validate", "test", "predict"):
        getattr(trainer(), evaluate)(orchestrator, datamodule=Evaluated())
    assert torch.equal(torch.get_rng_state(), expected)
    assert len(set(module.drawn)) == 6  # the validation after the fit draws the same two as the round's own
