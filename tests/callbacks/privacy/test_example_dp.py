"""ExampleDP: its gradients by hand, FedAvg's where it does nothing, what it costs, and what it refuses."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from fl_lightning import (
    ConfigurationError,
    FederatedCallback,
    FederatedDataModule,
    FederatedOrchestrator,
    LocalRun,
    Monitor,
)
from fl_lightning.callbacks import (
    AFL,
    IFCA,
    ExampleDP,
    FaultInjection,
    FedALA,
    FedBN,
    FedDecorr,
    FedDisco,
    FedFV,
    FedProx,
    FedSAM,
    FocalLoss,
    LocalDP,
    Scaffold,
)
from fl_lightning.callbacks.privacy.accountant import Accountant

NONE = {"clip": 1e9, "noise_multiplier": 1e-30}
VOUCHED = [
    *(
        "Sum",
        "Rows",
        "Net",
        "TinyData",
        "TinyClassifier",
        "Points",
        "Repeats",
        "OwnBatches",
        "Quasi",
        "Searches",
        "Reader",
    ),
    *("Leaves", "Leaves.on_train_batch_start", "Twice", "Twice.optimizer_step"),
    *("EndsEarlyTheSecondTime", "EndsEarlyTheSecondTime.on_train_start", "EndsEarlyTheSecondTime.on_train_batch_start"),
]
Vouched = partial(ExampleDP, by_example=VOUCHED)


class Sum(LightningModule):
    """The mean of w·c over a batch of rows c, one step of SGD(1) from zero: minus the mean gradient."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = (batch[0] @ self.w).mean()
        self.log("train/sum", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Rows(FederatedDataModule):
    """One client with some rows, in one batch."""

    num_clients = 1

    def __init__(self, rows: Tensor) -> None:
        super().__init__(batch_size=len(rows))
        self.rows = rows

    def client_dataset(self, client: int) -> Any:
        return torch.utils.data.TensorDataset(self.rows)


def step(rows: Any, **arguments: Any) -> tuple[Tensor, Any]:
    given = torch.as_tensor(rows, dtype=torch.float64)
    orchestrator = FederatedOrchestrator(Sum(given.shape[1]))
    run = trainer(Vouched(**arguments))
    run.fit(orchestrator, datamodule=Rows(given))
    return orchestrator.params.clone(), run


def test_each_gradient_is_clipped() -> None:
    """(3, 4)/5, (0, 0.5) and (0, -8)/8 over three."""
    moved, run = step([[3.0, 4.0], [0.0, 0.5], [0.0, -8.0]], noise_multiplier=1e-30)
    assert moved.tolist() == pytest.approx([-0.6 / 3, -0.3 / 3])
    assert float(run.callback_metrics["train/sum"]) == 0.0, "what the module logs is logged once, at the start"


def test_the_noise() -> None:
    """Z S / B = 3 · 2 / 4."""
    moved, _ = step(torch.zeros(4, 200_000), clip=2.0, noise_multiplier=3.0)
    assert float(moved.std()) == pytest.approx(1.5, abs=4 * 1.5 / math.sqrt(400_000))


class Net(LightningModule):
    """A classifier with dropout in which nothing mixes examples; its outputs are a dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def training_step(self, batch: list[Tensor]) -> dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(self.net(batch[0]), batch[1])}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def fit(module: Any, *rules: Any, rounds: int = 2, **settings: Any) -> tuple[Tensor, Any]:
    orchestrator, run = FederatedOrchestrator(module, **settings), trainer(*rules, rounds=rounds)
    run.fit(orchestrator, datamodule=TinyData(batch_size=4))
    return orchestrator.params.clone(), run


@pytest.mark.parametrize("beside", [[], [FedProx]])
def test_without_clip_and_noise_it_is_fedavg(beside: list[Any]) -> None:
    """To rounding, also beside a rule that corrects the gradient."""
    rules = [make(0.1) for make in beside]
    plain, other = fit(Net(), *rules)[0], fit(Net(), Vouched(**NONE), *rules)[0]
    assert float((plain - other).abs().max()) < 1e-12


PASSES: list[Any] = [({"local_epochs": 3}, 6), ({"local_steps": 2}, 4), ({"local_epochs": 0.5}, 2)]


@pytest.mark.parametrize(("epochs", "passes"), PASSES)
def test_epsilon_counts_passes(epochs: dict[str, Any], passes: int) -> None:
    """The smallest client has 4 examples, one batch: two steps are two passes of it. As z = 10 in units of 2 S."""
    run = fit(Net(), Vouched(noise_multiplier=20.0), **epochs)[1]
    expected = Accountant("fixed").epsilon(20.0, passes, 1e-5)
    assert float(run.callback_metrics["privacy/epsilon"]) == pytest.approx(expected)


class Points(FederatedDataModule):
    """Client 0 has 6 points, client 1 has 2, in batches of 2."""

    num_clients = 2

    def client_dataset(self, client: int) -> Any:
        draw, count = torch.Generator().manual_seed(client), (6, 2)[client]
        return TensorDataset(torch.randn(count, 4, generator=draw, dtype=torch.float64), torch.arange(count) % 3)

    def class_counts(self) -> Tensor:
        return torch.tensor([[2, 2, 2], [1, 1, 0]])


class Leaves(Net):
    """Ends an epoch before its second batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 1 else None


class Twice(Net):
    """Evaluates the last of three batches twice more."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        for _ in range(2 if batch_idx == 2 else 0):
            optimizer_closure()
        optimizer.step(closure=optimizer_closure)


class Quasi(Net):
    """LBFGS, which evaluates each batch three times for a step and reads its loss."""

    search: str | None = None

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3, line_search_fn=self.search)


class Searches(Quasi):
    search = "strong_wolfe"


RELEASED: list[Any] = [
    (Net, {}, [1, 1]),
    (Net, {"local_epochs": 2}, [2, 2]),
    (Net, {"local_epochs": 0.5}, [1, 1]),
    (Net, {"local_steps": 4}, [2, 4]),
    (Leaves, {"local_epochs": 2}, [2, 2]),
    (Twice, {"local_epochs": 2}, [6, 2]),
    (Quasi, {"local_epochs": 2}, [6, 6]),
]


@pytest.mark.parametrize(("module", "work", "expected"), RELEASED)
def test_the_most_sums_that_an_example_may_be_in(module: Any, work: Any, expected: list[int]) -> None:
    """Client 0 has three batches an epoch, client 1 has one; an epoch counts as its batch with most evaluations."""
    rule, orchestrator = Vouched(), FederatedOrchestrator(module(), **work)
    trainer(rule).fit(orchestrator, datamodule=Points(batch_size=2))
    assert rule.state["made"].tolist() == [expected]
    assert rule.state["releases"].tolist() == [[2.0, 1.0, 1.0, 1.0, 1.0]]


TRAININGS = [0]


class EndsEarlyTheSecondTime(Net):
    """Trains for three epochs, and when it trains again for one."""

    def on_train_start(self) -> None:
        TRAININGS[0] += 1

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        if TRAININGS[0] > 2 and self.trainer.current_epoch > 0:
            self.trainer.should_stop = True
        return None


def test_a_second_training_records_nothing() -> None:
    """Both clients release three passes; the first one's second training, of which nothing is sent, has fewer."""
    rule, orchestrator = Vouched(), FederatedOrchestrator(EndsEarlyTheSecondTime(), local_epochs=3)
    TRAININGS[0] = 0
    trainer(rule).fit(orchestrator, datamodule=Points(batch_size=2))
    assert TRAININGS[0] > 2
    assert rule.state["made"].tolist() == [[3, 3]]


class Repeats(Points):
    """Gives the first example of each client twice."""

    def client_dataset(self, client: int) -> Any:
        examples = super().client_dataset(client)
        return Subset(examples, [0, *range(len(examples))])


class OwnBatches(Points):
    def client_batches(self, client: int, order: torch.Generator) -> Any:
        return super().client_batches(client, order)


@pytest.mark.parametrize(("kind", "message"), [(Repeats, "client 0 has one several"), (OwnBatches, "client_batches")])
def test_an_example_that_comes_several_times_is_refused(kind: type[Points], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"ExampleDP counts an example once an epoch, but .*{message}"):
        trainer(Vouched()).fit(FederatedOrchestrator(Net()), datamodule=kind(batch_size=2))


def test_an_optimizer_reads_no_loss() -> None:
    """LBFGS stops its steps where the loss no longer falls; a line search needs nothing but the loss."""
    seen = list[Any]()

    class Reads(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            seen.append(closure())
            return super().step()

    class Reader(Net):
        def configure_optimizers(self) -> Any:
            return Reads(self.parameters(), lr=0.1)

    run = trainer(Vouched())
    run.fit(FederatedOrchestrator(Reader(), on_hidden_state="off"), datamodule=Points(batch_size=2))
    assert len(seen) == 4
    assert all(loss.isnan() for loss in seen)
    assert float(run.callback_metrics["train/loss"]) > 0
    with pytest.raises(ConfigurationError, match="the line search of LBFGS reads the loss, which has no noise"):
        trainer(Vouched()).fit(FederatedOrchestrator(Searches()), datamodule=Points(batch_size=2))


class InBackward(torch.optim.SGD):
    """Steps as soon as there is a gradient, which has no noise then."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        for parameter in self.param_groups[0]["params"]:
            parameter.register_post_accumulate_grad_hook(lambda own: own.data.sub_(own.grad))


def test_an_optimizer_sees_no_gradient_without_noise() -> None:
    class Early(Net):
        def configure_optimizers(self) -> Any:
            return InBackward(self.parameters())

    with pytest.raises(ConfigurationError, match=r"net\.0\.weight has hooks on its gradient"):
        fit(Early(), Vouched(by_example=[*VOUCHED, "Early"]), on_hidden_state="off")


def test_a_client_that_is_left_out_counts() -> None:
    rule, fault = Vouched(), FaultInjection("nan", clients=[0])
    trainer(rule, fault).fit(FederatedOrchestrator(Net(), local_epochs=2), datamodule=Points(batch_size=2))
    assert rule.state["made"].tolist() == [[2, 2]]


class Learns(FederatedCallback):
    """Changes where a client starts by its examples."""

    def on_client_start(self, orchestrator: Any, run: LocalRun) -> None:
        run.params.add_(next(iter(run.batches(torch.Generator())))[0].mean())


class Says(Learns):
    reads = frozenset()


class LearnsMore(Says):
    """Has a hook of its own, of which the class that it derives from knows nothing."""

    def on_client_start(self, orchestrator: Any, run: LocalRun) -> None:
        super().on_client_start(orchestrator, run)


class Watches(Monitor):
    def on_client_start(self, orchestrator: Any, run: LocalRun) -> None:
        """Look."""


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (FocalLoss, "ExampleDP and FocalLoss do not go together"),
        (FedSAM, "ExampleDP and FedSAM do not go together"),
        (FedDecorr, "FedDecorr would do nothing: keep one"),
        (partial(Scaffold, "I"), "clients train by ExampleDP: use option II"),
        (FedFV, "FedFV reads the clients' losses, which have no noise, so ε would be false"),
        (FedDisco, "FedDisco reads the clients' class counts, which have no noise"),
        (LocalDP, "ExampleDP and LocalDP do not go together: both log privacy/epsilon"),
        (partial(FedALA, ["net.3"]), "FedALA reads the clients' examples, which have no noise"),
        (IFCA, "IFCA reads the clients' examples, which have no noise"),
        (AFL, "AFL reads the clients' losses, which have no noise"),
        (Learns, r"Learns\.on_client_start may read more than updates.*: set reads in Learns, to frozenset\(\) if it"),
        (LearnsMore, r"LearnsMore\.on_client_start may read more than updates"),
    ],
)
def test_refused_beside_it(rule: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fit(Net(), ExampleDP(), rule())


def test_rules_that_say_what_they_read() -> None:
    fit(Net(), Vouched(), FedProx(0.1), Says(), Watches())


def test_batch_normalisation() -> None:
    """It mixes examples even where it stays with the clients."""
    with pytest.raises(ConfigurationError, match=r"net\.0 is BatchNorm, which mixes the examples of a batch"):
        fit(TinyClassifier(), ExampleDP(), FedBN())
