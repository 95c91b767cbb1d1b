"""How much work a client does in a round, and at which learning rate: epochs and their fractions, steps, stragglers,
the decay of the rate.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from command import TINY, fit, rows, run
from lightning.pytorch import LightningModule
from resumed import assert_same
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CyclicLR,
    LambdaLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FedNova
from fl_lightning.engine.training.local_training import LocalSettings
from fl_lightning.runs.checkpoints import LastCheckpoint


class Rows(FederatedDataModule):
    """Client k has as many examples as it is told to, in batches of 10; the last batch may be smaller."""

    def __init__(self, *sizes: int, **settings: Any) -> None:
        super().__init__(batch_size=10, **settings)
        self.num_clients, self.counts = len(sizes), sizes

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.linspace(client, client + 1, self.counts[client], dtype=torch.float64)[:, None])


class Mean(LightningModule):
    """f(w) = mean of (w - x)² / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return ((self.w - batch[0]) ** 2 / 2).mean()

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


def steps(data: FederatedDataModule, rounds: int = 1, module: LightningModule | None = None, **work: Any) -> Any:
    """(rounds, N) optimizer steps of every client, all of which take part in every round."""
    capture = toy.Capture()
    orchestrator = FederatedOrchestrator(module or Mean(), on_bad_update="raise", **work)
    toy.trainer(capture, rounds=rounds).fit(orchestrator, datamodule=data)
    return [cohort.num_steps.tolist() for cohort in capture.cohorts]


# Epochs and steps


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (1, [1, 3, 5, 10]),
        (2, [2 * 1, 2 * 3, 2 * 5, 2 * 10]),
        (2.0, [2 * 1, 2 * 3, 2 * 5, 2 * 10]),
        (0.5, [1, 2, 2, 5]),  # 0.5, 1.5, 2.5 and 5: 0.5 is rounded to 0, and raised to 1 since it is all there is
        (1.5, [1 + 0, 3 + 2, 5 + 2, 10 + 5]),  # one epoch; then 0.5, 1.5, 2.5 and 5, where the 0 stays
        (0.25, [1, 1, 1, 2]),  # 0.25, 0.75, 1.25 and 2.5: the 0 of 0.25 is raised to 1
        (2.75, [2 + 1, 6 + 2, 10 + 4, 20 + 8]),  # two epochs; then 0.75, 2.25, 3.75 and 7.5
        (0.01, [1, 1, 1, 1]),  # 0.01, 0.03, 0.05 and 0.1: all 0, raised to 1
        (1.01, [1 + 0, 3 + 0, 5 + 0, 10 + 0]),
    ],
)
def test_of_a_fraction_of_an_epoch_the_nearest_number_of_batches_is_taken(epochs: float, expected: list[int]) -> None:
    """Round the part of an epoch on its own, halves to the even number; a client takes at least one batch in all."""
    sizes = (5, 30, 41, 100)
    batches = [math.ceil(size / 10) for size in sizes]  # of at most 10 examples
    assert batches == [1, 3, 5, 10]
    assert steps(Rows(*sizes), local_epochs=epochs) == [expected]


def test_half_an_epoch_sees_half_of_the_examples_and_each_once() -> None:
    """100 examples: 5 batches of 10 distinct ones; other ones in the next round."""
    seen: list[list[float]] = [[], []]

    class Watch(Mean):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            seen[self._trainer.lightning_module.round - 1] += batch[0].flatten().tolist()
            return super().training_step(batch, batch_idx)

    steps(Rows(100), rounds=2, module=Watch(), local_epochs=0.5)
    assert [len(set(values)) for values in seen] == [50, 50]
    assert set(seen[0]) != set(seen[1])


def test_an_epoch_and_a_half_is_a_whole_one_and_half_of_another() -> None:
    """100 examples: each once, then 50 of them once more, in another order."""
    seen: list[float] = []

    class Watch(Mean):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            seen.extend(batch[0].flatten().tolist())
            return super().training_step(batch, batch_idx)

    steps(Rows(100), module=Watch(), local_epochs=1.5)
    assert len(seen) == 150
    assert len(set(seen[:100])) == 100
    assert len(set(seen[100:])) == 50
    assert seen[100:] != seen[:50]


@pytest.mark.parametrize(("count", "expected"), [(1, [1, 1]), (4, [4, 4]), (7, [7, 7])])
def test_steps_begin_the_data_again_as_often_as_needed(count: int, expected: list[int]) -> None:
    """Clients with 1 and 3 batches."""
    assert steps(Rows(5, 30), local_steps=count) == [expected]


@pytest.mark.parametrize(("work", "expected"), [({"local_epochs": 1}, 5), ({"local_epochs": 2}, 10), ({}, 5)])
def test_an_epoch_is_whatever_the_data_module_yields(work: dict[str, int], expected: int) -> None:
    """Same yields 5 batches of 6, though 30 examples in batches of 32 would be one."""
    assert steps(toy.Same(), module=toy.Net(), **work) == [[expected]]


def test_batches_that_end_early_end_a_fraction_too() -> None:
    """100 examples would make 10 batches; of a data module that yields only 4, half are 2."""

    class Short(Rows):
        def client_batches(self, client: int, order: torch.Generator) -> Any:
            return (batch for batch, _ in zip(super().client_batches(client, order), range(4), strict=False))

    assert steps(Short(100), local_epochs=0.5) == [[2]]
    assert steps(Short(100), local_epochs=2) == [[8]]


def test_fractions_count_batches_not_optimizer_steps() -> None:
    """Half of 10 batches, two to a step: 5 batches, 3 steps, the last of one batch."""
    assert steps(Rows(100), local_epochs=0.5, accumulate_grad_batches=2) == [[3]]


# The learning rate's decay


class Scheduled(toy.Quadratic):
    """T's module with a client's own StepLR, halving at each step."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1, 0.5), "interval": "step"}}


class WithAdam(toy.Quadratic):
    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), lr=toy.ETA)


class Rates(toy.Capture):
    """The learning rates of client 1's steps, by round."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: dict[int, list[float]] = {}

    def on_before_client_step(self, run: Any) -> None:
        if run.client == 1:
            self.rates.setdefault(run.round, []).append(run.optimizers[0].param_groups[0]["lr"])


def decayed(module: LightningModule, rounds: int = 2, *rules: Any, **settings: Any) -> tuple[Tensor, Rates]:
    orchestrator, rates = FederatedOrchestrator(module, on_bad_update="raise", **settings), Rates()
    toy.trainer(*rules, rates, rounds=rounds).fit(orchestrator, datamodule=toy.ToyData())
    return orchestrator.params.clone(), rates


def by_hand(decay: float, schedule: float = 1.0, rounds: int = 2) -> list[float]:
    """T under SGD whose rate is η decay^(r-1) schedule^t in step t of round r, averaged by n_k = (1, 3)."""
    w = [0.0, 0.0]
    for round in range(rounds):
        ends = []
        for client, tau in enumerate(toy.STEPS):
            end = list(w)
            for t in range(tau):
                rate = toy.ETA * decay**round * schedule**t
                a, b = toy.A[client].tolist(), toy.B[client].tolist()
                end = [x - rate * ai * (x - bi) for x, ai, bi in zip(end, a, b, strict=True)]
            ends.append(end)
        w = [(x + 3 * y) / 4 for x, y in zip(*ends, strict=True)]
    return w


def test_the_rate_decays_from_round_to_round() -> None:
    """Follow T through a round with the rate 0.1 and a round with 0.09; a step shrinks w - B by the factor 1 - ηA."""
    x, y = (0.19 + 3 * -1.314) / 4, (-0.36 + 3 * 0.28525) / 4  # round 1 ends in (0.19, -0.36) and (-1.314, 0.28525)
    assert (x, y) == pytest.approx((-0.938, 0.1239375), abs=1e-12)  # by hand
    end_0 = (1 + (x - 1) * (1 - 0.09 * 1) ** 2, -1 + (y + 1) * (1 - 0.09 * 2) ** 2)  # client 0: two steps
    end_1 = (-2 + (x + 2) * (1 - 0.09 * 3) ** 3, 2 + (y - 2) * (1 - 0.09 * 0.5) ** 3)  # client 1: three steps
    assert [*end_0, *end_1] == pytest.approx([-0.6048578, -0.244264425, -1.586863946, 0.365979814])  # by hand
    expected = [(end_0[0] + 3 * end_1[0]) / 4, (end_0[1] + 3 * end_1[1]) / 4]
    assert toy.close(decayed(toy.Quadratic(), local_lr_decay=0.9)[0], expected)
    assert by_hand(0.9) == pytest.approx(expected, abs=1e-12)
    assert not toy.close(decayed(toy.Quadratic())[0], expected, 1e-3)


def test_the_decayed_rate_is_where_a_schedule_starts() -> None:
    """StepLR halves after each step; in round 2 it starts from 0.09 again, not from where round 1 ended."""
    reached, rates = decayed(Scheduled(), local_lr_decay=0.9)
    assert rates.rates[1] == pytest.approx([0.1, 0.05, 0.025], abs=1e-15)
    assert rates.rates[2] == pytest.approx([0.09, 0.045, 0.0225], abs=1e-15)
    assert toy.close(reached, by_hand(0.9, schedule=0.5))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda o: LambdaLR(o, lambda step: 0.5**step), [0.1, 0.05, 0.025]),
        (lambda o: CyclicLR(o, 0.1, 0.2, 2), [0.1, 0.15, 0.2]),
        (lambda o: SequentialLR(o, [ConstantLR(o, 0.5), LambdaLR(o, lambda step: 2.0)], [2]), [0.05, 0.05, 0.2]),
        (lambda o: ChainedScheduler([StepLR(o, 1, 0.5), ConstantLR(o, 0.5, 1)], o), [0.05, 0.05, 0.025]),
        (
            lambda o: OneCycleLR(o, 0.2, 3, div_factor=2, pct_start=2 / 3, anneal_strategy="linear"),
            [0.1, 0.2, 0.1 / 1e4],
        ),
    ],
    ids=["lambda", "cyclic", "sequential", "chained", "one cycle"],
)
def test_every_schedule_decays(make: Any, expected: list[float]) -> None:
    """By their definitions, at 0.1, three steps; in round 2, all of it times 0.9: what a schedule rises to as well."""

    class WithSchedule(toy.Quadratic):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), "interval": "step"}}

    _, rates = decayed(WithSchedule(), local_lr_decay=0.9)
    assert rates.rates[1] == pytest.approx(expected, abs=1e-12)
    assert rates.rates[2] == pytest.approx([0.9 * rate for rate in expected], abs=1e-12)
    assert decayed(WithSchedule())[1].rates[2] == rates.rates[1]


def test_adam_decays_too() -> None:
    """Adam's first step from rest moves each coordinate by η: in round r by 0.1·0.9^(r-1), up to ε/|g| ≈ 1e-8."""
    _, rates = decayed(WithAdam(), local_lr_decay=0.9, local_steps=1)
    starts = [rates.cohorts[0].anchor, rates.cohorts[1].anchor]
    assert toy.close(starts[0], [0.0, 0.0])
    moved = [cohort.deltas.abs() for cohort in rates.cohorts]
    assert toy.close(moved[0], [[0.1, 0.1]] * 2, 1e-7)
    assert toy.close(moved[1], [[0.09, 0.09]] * 2, 1e-7)


def test_manual_optimization_decays_too() -> None:
    reached, rates = decayed(toy.Manual(), local_lr_decay=0.9)
    assert rates.rates[2] == pytest.approx([0.09] * 3, abs=1e-15)
    assert toy.close(reached, by_hand(0.9))


def test_every_optimizer_and_group_decays() -> None:
    """Two optimizers, one of two groups: rates (0.1, 0.2) and 0.3, in round 3 times 0.25."""
    seen: list[list[float]] = []

    class Two(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.a, self.b, self.c = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(3))

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizers: Any = self.optimizers()
            seen.append([group["lr"] for optimizer in optimizers for group in optimizer.param_groups])
            self.manual_backward((self.a + self.b + self.c).sum())
            for optimizer in optimizers:
                optimizer.step()

        def configure_optimizers(self) -> list[Optimizer]:
            return [SGD([{"params": [self.a], "lr": 0.1}, {"params": [self.b], "lr": 0.2}]), SGD([self.c], lr=0.3)]

    steps(Rows(10), rounds=3, module=Two(), local_lr_decay=0.5)
    assert seen == [pytest.approx([rate * 0.5**r for rate in (0.1, 0.2, 0.3)]) for r in range(3)]


def test_normalizers_are_in_units_of_the_decayed_rate() -> None:
    """‖a‖₁ = τ for plain SGD, at whatever rate; η_k is that of the round. With StepLR(0.5): Σ η 0.5^t / η."""
    _, plain = decayed(toy.Quadratic(), 3, FedNova(), local_lr_decay=0.9)
    for round, cohort in enumerate(plain.cohorts):
        assert toy.close(cohort.normalizers, [2.0, 3.0])
        assert toy.close(cohort.learning_rates, [0.1 * 0.9**round] * 2)
    _, scheduled = decayed(Scheduled(), 2, FedNova(), local_lr_decay=0.9)
    assert toy.close(scheduled.cohort.normalizers, [1.5, 1.75])
    assert toy.close(scheduled.cohort.learning_rates, [0.09, 0.09])
    _, momentum = decayed(toy.Quadratic(momentum=0.5), 2, local_lr_decay=0.9)
    assert toy.close(momentum.cohort.normalizers, [2.5, 4.25])


def test_fednova_decays_as_the_rate_does() -> None:
    """Round 2 of T from w¹ by hand: τ_eff = 1/4·2 + 3/4·3 = 2.75, w² = w¹ + 2.75 (Δ_0/2 + 3 Δ_1/3)/4."""
    reached, rates = decayed(toy.Quadratic(), 2, FedNova(), local_lr_decay=0.9)
    w = rates.cohort.anchor.tolist()
    ends = []
    for client, tau in enumerate(toy.STEPS):
        a, b = toy.A[client].tolist(), toy.B[client].tolist()
        ends.append([bi + (x - bi) * (1 - 0.09 * ai) ** tau for x, ai, bi in zip(w, a, b, strict=True)])
    expected = [x + 2.75 * ((p - x) / 2 + 3 * (q - x) / 3) / 4 for x, p, q in zip(w, *ends, strict=True)]
    assert toy.close(reached, expected)


# Stragglers


class Work(toy.Capture):
    """How many epochs each client did in each round, by its batches: all clients have the same number of them."""

    def done(self, batches: int = 1) -> dict[tuple[int, int], int]:
        return {(run.round, run.client): len(run._step_sizes) // batches for run in self.runs}


def straggling(rounds: int = 200, clients: int = 10, seed: int = 0, **work: Any) -> dict[tuple[int, int], int]:
    """Epochs (steps) by round and client; a client's data is one batch."""
    capture = Work()
    data = Rows(*[1] * clients, clients_per_batch=clients)
    toy.trainer(capture, rounds=rounds).fit(FederatedOrchestrator(Mean(), seed=seed, **work), datamodule=data)
    return capture.done()


@pytest.fixture(scope="module")
def drawn() -> dict[tuple[int, int], int]:
    return straggling(local_epochs=5, stragglers=0.4)


def test_about_the_given_share_of_clients_do_less(drawn: dict[tuple[int, int], int]) -> None:
    """2000 draws. A straggler does 1 to 5 epochs, each with 0.2: fewer than 5 with 0.4·0.8 = 0.32, each number with
    0.08. The standard deviations of the counts are √(2000·0.32·0.68) = 21 and √(2000·0.08·0.92) = 12; five of them.
    """
    counts = Counter(drawn.values())
    assert sum(counts.values()) == 2000
    assert set(counts) == {1, 2, 3, 4, 5}
    assert abs(2000 - counts[5] - 640) < 105
    assert all(abs(counts[epochs] - 160) < 61 for epochs in (1, 2, 3, 4))


def test_rounds_and_clients_draw_independently(drawn: dict[tuple[int, int], int]) -> None:
    """Per client, 200·0.32 = 64 do less, standard deviation 6.6; per round, 10·0.32 = 3.2, and not all the same."""
    by_client, by_round = Counter[int](), Counter[int]()
    for (round, client), epochs in drawn.items():
        by_client[client] += epochs < 5
        by_round[round] += epochs < 5
    assert all(abs(by_client[client] - 64) < 33 for client in range(10))
    spread = torch.tensor([float(by_round[round]) for round in range(1, 201)]).var()
    assert 1.2 < spread < 3.6, "binomial: 10·0.32·0.68 = 2.2"


def test_the_draw_depends_on_seed_round_and_client_alone(drawn: dict[tuple[int, int], int]) -> None:
    """Not on how many others take part, nor on how many rounds there are; another seed draws another."""
    fewer = straggling(rounds=20, clients=3, local_epochs=5, stragglers=0.4)
    assert fewer == {key: epochs for key, epochs in drawn.items() if key in fewer}
    other = straggling(rounds=20, clients=3, seed=1, local_epochs=5, stragglers=0.4)
    assert other != fewer


def test_steps_straggle_as_epochs_do(drawn: dict[tuple[int, int], int]) -> None:
    """One batch is one epoch here, so 5 steps are 5 epochs, and the draws are the same."""
    by_steps = straggling(rounds=20, local_steps=5, stragglers=0.4)
    assert by_steps == {key: epochs for key, epochs in drawn.items() if key in by_steps}


def test_all_straggle_or_none() -> None:
    """With share 1 the numbers 1 to 3 come each with 1/3 of 300: standard deviation 8.2. With one epoch, none can."""
    counts = Counter(straggling(rounds=30, local_epochs=3, stragglers=1.0).values())
    assert set(counts) == {1, 2, 3}
    assert all(abs(count - 100) < 41 for count in counts.values())
    assert set(straggling(rounds=5, local_epochs=1, stragglers=1.0).values()) == {1}
    assert set(straggling(rounds=5, local_epochs=3, stragglers=0.0).values()) == {3}


def test_fractions_of_an_epoch_straggle_to_whole_ones() -> None:
    """Of 2.5 epochs: 1, 2 or all 2.5 (10 batches: 10, 20, 25 steps), each with 1/3. Of half an epoch: half an epoch."""
    capture = Work()
    data = Rows(*[100] * 5, clients_per_batch=5)
    settings = {"local_epochs": 2.5, "stragglers": 1.0}
    toy.trainer(capture, rounds=20).fit(FederatedOrchestrator(Mean(), **settings), datamodule=data)  # type: ignore[arg-type]
    counts = Counter(capture.done().values())
    assert set(counts) == {10, 20, 25}
    assert all(abs(count - 33.3) < 24 for count in counts.values())
    assert steps(Rows(100, 100), rounds=3, local_epochs=0.5, stragglers=1.0) == [[5, 5]] * 3


def test_who_does_not_straggle_is_not_affected() -> None:
    """In round 1, the clients that do all their work end where they end without stragglers, bit for bit."""

    def ends(stragglers: float) -> tuple[dict[int, Tensor], dict[int, int]]:
        capture = toy.Capture()
        data = Rows(*[40] * 12)
        orchestrator = FederatedOrchestrator(Mean(), local_epochs=3, stragglers=stragglers)
        toy.trainer(capture).fit(orchestrator, datamodule=data)
        counts = dict(zip(capture.cohort.clients, capture.cohort.num_steps.tolist(), strict=True))
        return dict(zip(capture.clients, capture.params, strict=True)), counts

    (plain, full), (some, counts) = ends(0.0), ends(0.5)
    assert set(full.values()) == {12}
    less = {client for client in counts if counts[client] < 12}
    assert 0 < len(less) < 12
    assert all(torch.equal(plain[client], some[client]) == (client not in less) for client in plain)


@pytest.mark.parametrize("neutral", [{"stragglers": 0.0}, {"local_lr_decay": 1.0}, {"local_epochs": 2.0}])
@pytest.mark.parametrize("module", [toy.Quadratic, Scheduled, WithAdam, toy.Manual])
def test_neutral_settings_change_nothing(neutral: dict[str, float], module: type[LightningModule]) -> None:
    """Bit for bit; 1 and 1.0, 2 and 2.0 are the same."""
    plain, _ = decayed(module(), 3, **({"local_epochs": 2} | neutral))
    assert torch.equal(plain, decayed(module(), 3, local_epochs=2)[0])


# What is refused


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ({"local_epochs": 0}, "local_epochs must be positive, got 0"),
        ({"local_epochs": -0.5}, "local_epochs must be positive, got -0.5"),
        ({"local_epochs": math.nan}, "local_epochs must be positive, got nan"),
        ({"local_epochs": math.inf}, "local_epochs must be positive, got inf"),
        ({"local_steps": 0}, "local_steps must be at least 1, got 0"),
        ({"local_steps": 2.5}, "local_steps must be a whole number, got 2.5"),
        ({"local_steps": math.nan}, "local_steps must be at least 1, got nan"),
        ({"local_epochs": 1.5, "local_steps": 3}, "give local_epochs or local_steps, got both: 1.5 and 3"),
        ({"stragglers": -0.1}, r"stragglers must be a share in \[0, 1\], got -0.1"),
        ({"stragglers": 1.5}, r"stragglers must be a share in \[0, 1\], got 1.5"),
        ({"stragglers": math.nan}, r"stragglers must be a share in \[0, 1\], got nan"),
        ({"local_lr_decay": 0.0}, r"local_lr_decay must be in \(0, 1\], got 0.0"),
        ({"local_lr_decay": 1.1}, r"local_lr_decay must be in \(0, 1\], got 1.1"),
        ({"local_lr_decay": math.nan}, r"local_lr_decay must be in \(0, 1\], got nan"),
    ],
)
def test_bad_values_are_refused(work: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{message}$"):
        FederatedOrchestrator(toy.Quadratic(), **work)


def test_work_is_what_the_settings_say() -> None:
    """The draw itself: a generator that is keyed alike draws alike, and one of epochs and steps is None."""

    def work(epochs: float | None, steps: int | None, stragglers: float) -> tuple[float | None, int | None]:
        settings = LocalSettings(epochs, steps, stragglers, 1.0, 1, None, "norm")
        work = settings.work(torch.Generator().manual_seed(5))
        return work.epochs, work.steps

    assert work(3, None, 0.0) == (3, None)
    assert work(None, 7, 0.0) == (None, 7)
    assert work(None, 1, 1.0) == (None, 1)
    assert work(0.5, None, 1.0) == (0.5, None)
    assert work(6, None, 1.0) == work(6, None, 1.0)


# A run


def train(folder: Path, rounds: int, resume: Path | None = None) -> Path:
    """All of it on, half the clients a round; the path of last.ckpt."""
    data = Rows(35, 41, 58, 90, 12, 77, participation=0.5)
    orchestrator = FederatedOrchestrator(Mean(), local_epochs=2.5, local_lr_decay=0.8, stragglers=0.5, seed=2)
    trainer = toy.trainer(LastCheckpoint(), rounds=rounds, default_root_dir=folder, enable_checkpointing=True)
    trainer.fit(orchestrator, datamodule=data, ckpt_path=resume)
    return folder / "checkpoints" / "last.ckpt"


def test_a_run_that_was_stopped_goes_on_with_all_of_it(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 6)
    stopped = train(tmp_path / "stopped", 3)
    assert_same(whole, train(tmp_path / "stopped", 6, resume=stopped))
    with pytest.raises(AssertionError):
        assert_same(whole, train(tmp_path / "shorter", 5))


def test_the_command_line_sets_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped and resumed as well; config.yaml keeps the values, another decay is another result."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    work = ["--model.local_lr_decay", "0.99", "--model.stragglers", "0.5", "--model.local_epochs", "0.5"]
    fit(*work, "--trainer.max_epochs", 3)
    fit(*work, "--experiment", "stopped")
    fit(*work, "--experiment", "stopped", "--trainer.max_epochs", 3, "--ckpt_path", "last")
    folder = Path("runs/tiny/version_0")
    assert_same(folder / "checkpoints/last.ckpt", Path("runs/stopped/version_0/checkpoints/last.ckpt"))
    for line in ("local_lr_decay: 0.99", "stragglers: 0.5", "local_epochs: 0.5"):
        assert line in (folder / "config.yaml").read_text()
    fit(*work, "--experiment", "other", "--model.local_lr_decay", "0.5")
    first, second = (rows(f"runs/{name}/version_0/metrics.csv") for name in ("tiny", "other"))
    assert first[0]["train/loss"] == second[0]["train/loss"]
    assert first[1]["val/loss"] != second[1]["val/loss"]


def test_the_command_line_refuses_bad_work_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    for option, value, message in (
        ("local_epochs", "-1", "local_epochs must be positive, got -1"),
        ("stragglers", "2", "stragglers must be a share in [0, 1], got 2.0"),
        ("local_lr_decay", "0", "local_lr_decay must be in (0, 1], got 0.0"),
    ):
        result = run("fit", "--config", "tiny.yaml", f"--model.{option}", value)
        assert (result.status, result.err) == (2, f"fl-lightning: error: {message}\n")
