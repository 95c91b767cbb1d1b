"""How much work a client does in a round, and at which learning rate: epochs and their fractions, steps, stragglers,
the decay of the rate.
"""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from lib import toy
from lib.resumed import assert_same
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import SGD, Optimizer
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
from fl_lightning.engine.rules.work import LocalSettings, Work
from fl_lightning.runs.folder.checkpoints import LastCheckpoint
from fl_lightning.seeding import generator


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
    ("work", "expected"),
    [
        ({"epochs": 1}, [1, 3, 5, 10]),
        ({"epochs": 2.0}, [2 * 1, 2 * 3, 2 * 5, 2 * 10]),
        ({"epochs": 0.5}, [1, 2, 2, 5]),  # 0.5, 1.5, 2.5, 5: the 0 of 0.5 is raised to 1, since it is all there is
        ({"epochs": 1.5}, [1 + 0, 3 + 2, 5 + 2, 10 + 5]),  # one epoch; then 0.5, 1.5, 2.5 and 5, where the 0 stays
        ({"epochs": 2.75}, [2 + 1, 6 + 2, 10 + 4, 20 + 8]),  # two epochs; then 0.75, 2.25, 3.75 and 7.5
        ({"epochs": 0.01}, [1, 1, 1, 1]),
        ({"epochs": 1.01}, [1 + 0, 3 + 0, 5 + 0, 10 + 0]),
        ({"steps": 1}, [1, 1, 1, 1]),
        ({"steps": 7}, [7, 7, 7, 7]),  # the data begin again
    ],
)
def test_batches_of_a_client(work: dict[str, Any], expected: list[int]) -> None:
    """Of clients with 1, 3, 5 and 10 batches. The part of an epoch is rounded on its own, halves to the even number."""
    clients = [work_of(**work, batches=count) for count in (1, 3, 5, 10)]
    assert [client.total_batches for client in clients] == expected
    assert work_of(epochs=0.5, batches=10, accumulate=2).optimizer_steps == 3  # of 5 batches, the last one alone


def work_of(
    epochs: float | None = None,
    steps: int | None = None,
    stragglers: float = 0.0,
    accumulate: int = 1,
    batches: int = 1,
    draws: torch.Generator | None = None,
) -> Work:
    settings = LocalSettings(epochs, steps, stragglers, 1.0, accumulate, None, "norm")
    return settings.work(draws, lambda: range(batches))


def test_an_epoch_and_a_half_is_a_whole_one_and_half_of_another() -> None:
    """100 examples: each once, then 50 of them once more, in another order."""
    seen: list[float] = []

    class Watch(Mean):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            seen.extend(batch[0].flatten().tolist())
            return super().training_step(batch, batch_idx)

    steps(Rows(100), module=Watch(), local_epochs=1.5, on_hidden_state="off")
    assert len(seen) == 150
    assert len(set(seen[:100])) == 100
    assert len(set(seen[100:])) == 50
    assert seen[100:] != seen[:50]


def test_an_epoch_is_whatever_the_data_module_yields() -> None:
    """100 examples would make 10 batches; of a data module that yields only 4, half are 2."""

    class Short(Rows):
        def client_batches(self, client: int, order: torch.Generator) -> Any:
            return (batch for batch, _ in zip(super().client_batches(client, order), range(4), strict=False))

    assert [steps(Short(100), local_epochs=epochs) for epochs in (0.5, 2)] == [[[2]], [[8]]]


# The learning rate's decay


class Scheduled(toy.Quadratic):
    """T's module with a client's own StepLR, halving at each step."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1, 0.5), "interval": "step"}}


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


def test_the_rate_decays_from_round_to_round() -> None:
    """Follow T through a round with the rate 0.1 and a round with 0.09; a step shrinks w - B by the factor 1 - ηA."""
    x, y = (0.19 + 3 * -1.314) / 4, (-0.36 + 3 * 0.28525) / 4  # round 1 ends in (0.19, -0.36) and (-1.314, 0.28525)
    assert (x, y) == pytest.approx((-0.938, 0.1239375), abs=1e-12)  # by hand
    end_0 = (1 + (x - 1) * (1 - 0.09 * 1) ** 2, -1 + (y + 1) * (1 - 0.09 * 2) ** 2)  # client 0: two steps
    end_1 = (-2 + (x + 2) * (1 - 0.09 * 3) ** 3, 2 + (y - 2) * (1 - 0.09 * 0.5) ** 3)  # client 1: three steps
    assert [*end_0, *end_1] == pytest.approx([-0.6048578, -0.244264425, -1.586863946, 0.365979814])  # by hand
    expected = [(end_0[0] + 3 * end_1[0]) / 4, (end_0[1] + 3 * end_1[1]) / 4]
    assert toy.close(decayed(toy.Quadratic(), local_lr_decay=0.9)[0], expected)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda o: CyclicLR(o, 0.1, 0.2, 2), [0.1, 0.15, 0.2]),
        (lambda o: SequentialLR(o, [ConstantLR(o, 0.5), LambdaLR(o, lambda step: 2.0)], [2]), [0.05, 0.05, 0.2]),
        (lambda o: ChainedScheduler([StepLR(o, 1, 0.5), ConstantLR(o, 0.5, 1)], o), [0.05, 0.05, 0.025]),
        (
            lambda o: OneCycleLR(o, 0.2, 3, div_factor=2, pct_start=5 / 6, anneal_strategy="linear"),
            [0.1, 0.1 + 0.1 * 2 / 3, 0.1 / 1e4],
        ),
    ],
    ids=["cyclic", "sequential", "chained", "one cycle"],
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


def test_a_rule_gives_clients_their_own_rate_and_epochs() -> None:
    """Client 1 trains at half of 0.1, and client 0 three epochs of two steps, by the page's rule."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "local-training.md").read_text()
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(next(block for block in blocks if "class OwnWork" in block), names)
    _, rates = decayed(toy.Quadratic(), 2, names["OwnWork"]({1: 0.5}, {0: 3}), local_lr_decay=0.9)
    assert rates.rates == {1: pytest.approx([0.05] * 3), 2: pytest.approx([0.045] * 3)}
    assert rates.cohort.num_steps.tolist() == [6, 3]


def test_a_module_knows_its_client_when_it_makes_the_optimizer() -> None:
    """Client 1 has the rate 0.2, in round 2 times 0.9; in evaluation there is no client."""

    class Own(toy.Quadratic):
        def configure_optimizers(self) -> Any:
            trainer: Any = self.trainer
            return SGD(self.parameters(), lr=0.1 * (1 + trainer.run.client))

        def on_validation_start(self) -> None:
            trainer: Any = self.trainer
            assert trainer.run is None

    _, rates = decayed(Own(), local_lr_decay=0.9)
    assert rates.rates == {1: pytest.approx([0.2] * 3), 2: pytest.approx([0.18] * 3)}
    assert toy.close(rates.cohort.learning_rates, [0.09, 0.18])


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

    steps(Rows(10), rounds=3, module=Two(), local_lr_decay=0.5, on_hidden_state="off")
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


# Stragglers


def drawn(rounds: int = 200, clients: int = 10, seed: int = 0, **work: Any) -> dict[tuple[int, int], int]:
    """Batches by round and client, whose data are one batch."""
    pairs = [(round, client) for round in range(1, rounds + 1) for client in range(clients)]
    return {pair: work_of(**work, draws=generator(seed, "stragglers", *pair)).total_batches for pair in pairs}


def test_about_the_given_share_of_clients_do_less() -> None:
    """2000 draws. A straggler does 1 to 5 epochs, each with 0.2: fewer than 5 with 0.4·0.8 = 0.32, each number with
    0.08. The standard deviations of the counts are √(2000·0.32·0.68) = 21 and √(2000·0.08·0.92) = 12; five of them.
    """
    counts = Counter(drawn(epochs=5, stragglers=0.4).values())
    assert set(counts) == {1, 2, 3, 4, 5}
    assert abs(2000 - counts[5] - 640) < 105
    assert all(abs(counts[epochs] - 160) < 61 for epochs in (1, 2, 3, 4))
    assert drawn(steps=5, stragglers=0.4) == drawn(epochs=5, stragglers=0.4)


def test_fractions_of_an_epoch_straggle_to_whole_ones() -> None:
    """Of 2.5 epochs: 1, 2 or all 2.5 (10 batches: 10, 20, 25), each with 1/3. Of one epoch or half a one: all of it."""
    counts = Counter(drawn(epochs=2.5, stragglers=1.0, batches=10, rounds=30).values())
    assert set(counts) == {10, 20, 25}
    assert all(abs(count - 100) < 41 for count in counts.values())
    assert {*drawn(epochs=1, stragglers=1.0, rounds=5).values()} == {1}
    assert {*drawn(epochs=0.5, stragglers=1.0, batches=10, rounds=5).values()} == {5}


def test_the_draw_depends_on_seed_round_and_client_alone_and_leaves_the_others_alone() -> None:
    """Not on how many others take part. In round 1, who does all its work ends where it ends without stragglers."""

    def ends(stragglers: float, **data: Any) -> toy.Capture:
        capture = toy.Capture()
        orchestrator = FederatedOrchestrator(Mean(), local_epochs=3, stragglers=stragglers, seed=1)
        toy.trainer(capture, rounds=2).fit(orchestrator, datamodule=Rows(*[40] * 12, **data))
        return capture

    plain, some = ends(0.0), ends(0.5)
    expected = drawn(rounds=2, clients=12, seed=1, epochs=3, stragglers=0.5)
    for number, cohort in enumerate(some.cohorts, start=1):
        assert cohort.num_steps.tolist() == [4 * expected[number, client] for client in range(12)]
    fewer = ends(0.5, participation=5).cohorts[1]
    assert fewer.num_steps.tolist() == [4 * expected[2, client] for client in fewer.clients]
    less = [expected[1, client] < 3 for client in range(12)]
    assert 0 < sum(less) < 12
    assert [not torch.equal(*pair) for pair in zip(plain.params[:12], some.params[:12], strict=True)] == less


# What is refused


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ({"local_epochs": 0}, "local_epochs must be positive and finite, got 0"),
        ({"local_epochs": math.nan}, "local_epochs must be positive and finite, got nan"),
        ({"local_epochs": math.inf}, "local_epochs must be positive and finite, got inf"),
        ({"local_steps": 0}, "local_steps must be at least 1, got 0"),
        ({"local_steps": 2.5}, "local_steps must be a whole number, got 2.5"),
        ({"local_steps": math.nan}, "local_steps must be a whole number, got nan"),
        ({"accumulate_grad_batches": 0}, "accumulate_grad_batches must be at least 1, got 0"),
        ({"gradient_clip_algorithm": "l2"}, "gradient_clip_algorithm must be 'norm' or 'value', got 'l2'"),
        ({"gradient_clip_val": -1.0}, "gradient_clip_val must be positive and finite, got -1.0"),
        ({"on_bad_update": "ignore"}, "on_bad_update must be 'skip' or 'raise', got 'ignore'"),
        ({"local_epochs": 1.5, "local_steps": 3}, "give local_epochs or local_steps, got both: 1.5 and 3"),
        ({"stragglers": 1.5}, r"stragglers must be in \[0, 1\], got 1.5"),
        ({"local_lr_decay": 1.1}, r"local_lr_decay must be in \(0, 1\], got 1.1"),
        ({"local_lr_decay": math.nan}, r"local_lr_decay must be in \(0, 1\], got nan"),
    ],
)
def test_bad_values_are_refused(work: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{message}$"):
        FederatedOrchestrator(toy.Quadratic(), **work)


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
