"""ExampleDP: its gradients by hand, FedAvg's where it does nothing, what it costs, and what it refuses."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.resumed import assert_same
from lib.rules import TinyClassifier, TinyData
from lib.toy import trainer
from lib.words import BERT, LLAMA
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
from fl_lightning.engine.module.failures import RuleError
from fl_lightning.models import ImageClassifier, TextTransformer
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

STILL_BERT = {**BERT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 12, "vocab_size": 9}
GPT2 |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
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


class Looks(Net):
    """Looks at values, which vmap does not let it, after it has drawn."""

    def training_step(self, batch: list[Tensor]) -> dict[str, Tensor]:
        images = nn.functional.dropout(batch[0], self.dropout)
        return super().training_step([images if bool((images != 0).any()) else images + 1, batch[1]])

    dropout = 0.0


class Notes(Looks):
    """Keeps what it has seen in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros((), dtype=torch.float64))

    def training_step(self, batch: list[Tensor]) -> dict[str, Tensor]:
        self.largest.fill_(float(batch[0].max()))
        return super().training_step(batch)


SEES_VALUES = partial(ExampleDP, by_example=[*VOUCHED, "Looks", "Notes"])


def test_examples_one_by_one_where_a_module_looks_at_values(recwarn: pytest.WarningsRecorder) -> None:
    """The gradients, the noise and the step are those of the module that does not look; a line says it once."""
    at_once, looked = fit(Net(), Vouched())[0], fit(Looks(), SEES_VALUES())[0]
    assert float((at_once - looked).abs().max()) < 1e-12
    said = [str(warning.message) for warning in recwarn if "one by one" in str(warning.message)]
    assert said == [
        "ExampleDP: Looks cannot take the examples of a batch at once, so it takes one by one, which is slower"
    ]


def test_a_buffer_gets_no_noise() -> None:
    """Torch itself refuses to differentiate by what writes to a buffer."""
    with pytest.raises(RuleError, match=r"in-place operation .* that would mutate a captured Tensor"):
        fit(Notes(), SEES_VALUES())


def test_a_stop_changes_no_bit_of_examples_one_by_one(tmp_path: Path) -> None:
    """With dropout before the step that vmap refuses: the attempt, after the stop in another round, draws nothing."""

    class Drops(Looks):
        dropout = 0.5

    def train(folder: str, rounds: int, resume: Path | None = None) -> Path:
        rule = ExampleDP(by_example=[*VOUCHED, "Drops"])
        settings: dict[str, Any] = {"default_root_dir": tmp_path / folder, "enable_checkpointing": True}
        run = trainer(rule, LastCheckpoint(), rounds=rounds, **settings)
        run.fit(FederatedOrchestrator(Drops()), datamodule=TinyData(batch_size=4), ckpt_path=resume)
        return tmp_path / folder / "checkpoints" / "last.ckpt"

    whole, half = train("whole", 3), train("stopped", 1)
    assert_same(whole, train("stopped", 3, resume=half))


@pytest.mark.parametrize(("kind", "settings"), [("bert", STILL_BERT), ("llama", LLAMA), ("gpt2", GPT2)])
def test_attention_masks(kind: str, settings: dict[str, Any]) -> None:
    """A classifier of padded texts, and a module of one's own on dicts: without clip and noise, FedAvg's."""
    transformers: Any = pytest.importorskip("transformers")
    tokens = torch.randint(1, 9, (6, 10), generator=torch.Generator().manual_seed(0))
    tokens[1, 4:] = -100
    labels = torch.tensor([0, 1, 2, 0, 1, 2])

    def ends(make: Any, examples: Any, *rules: Any, **settings: Any) -> Tensor:
        torch.manual_seed(0)
        orchestrator = FederatedOrchestrator(make())
        data = FederatedDataModule.from_loaders(examples, num_clients=1, batch_size=3, **settings)
        trainer(*rules).fit(orchestrator, datamodule=data)
        return orchestrator.params.clone()

    def shipped() -> Any:
        optimizer = partial(torch.optim.SGD, lr=0.1)
        return ImageClassifier(TextTransformer(kind, 3, settings, weights=False), 3, optimizer=optimizer)

    class Own(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            config = transformers.AutoConfig.for_model(kind, **settings, num_labels=3, pad_token_id=0)
            self.net = transformers.AutoModelForSequenceClassification.from_config(config)
            self.net.eval()

        def training_step(self, batch: dict[str, Tensor]) -> Any:
            return self.net(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows = [
        {"input_ids": text.clamp(min=0), "attention_mask": (text >= 0).long(), "labels": label}
        for text, label in zip(tokens, labels, strict=True)
    ]
    for make, examples in ((shipped, TensorDataset(tokens, labels)), (Own, rows)):
        rule = ExampleDP(**NONE, by_example=["Own", "list"])
        plain, other = ends(make, examples), ends(make, examples, rule)
        assert float((plain - other).abs().max()) < 1e-6
        assert float((plain - ends(make, examples, ExampleDP(by_example=["Own", "list"]))).abs().max()) > 1e-3
