"""Clients that train at once (clients_at_once) end where clients that train one after another end, but for rounding.

A case has an optimizer, settings and rules. Quick cases have each of these once, slow ones every two together.
"""

import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from lib.command import TINY, fit, fit_on
from lib.covering import covering, every
from lib.rules import CLIENT_RULES, PERSONAL, TinyClassifier, TinyData
from lib.toy import SEEN, Capture, Net, trainer
from torch import Tensor, nn
from zoo import manual, networks, optimizers

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun
from fl_lightning.callbacks import ClientMonitor, FaultInjection, FedNova, FedProx, Scaffold, SignFlip
from fl_lightning.datamodules import ImageData
from fl_lightning.models import ImageClassifier

EXACT = 1e-9  # float64, absolute


class SingleData(TinyData):
    """The same data in float32."""

    def client_dataset(self, client: int) -> Any:
        inputs, labels = super().client_dataset(client).tensors
        return torch.utils.data.TensorDataset(inputs.float(), labels)


def compare(
    make: Any,
    *rules: Callable[[], Any],
    size: int = 6,
    tolerance: float = EXACT,
    data: type[TinyData] = TinyData,
    padded: bool | None = None,
    **settings: Any,
) -> None:
    """One by one and in groups: updates, losses, metrics, steps, buffers and the global model agree."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # which would say that there are no groups
        warnings.filterwarnings("ignore", message=".*srun")  # Lightning's, on a machine with SLURM
        warnings.filterwarnings("ignore", ".*(LeafSpec|workers|val_dataloader|num_workers).*")
        ends = []
        for at_once in (1, size):
            watched, chosen = Capture(), [rule() for rule in rules]
            orchestrator = FederatedOrchestrator(make(), clients_at_once=at_once, on_bad_update="raise", **settings)
            trainer(*chosen, watched, rounds=2).fit(orchestrator, datamodule=data(batch_size=4))
            assert (SEEN[orchestrator].group_size > 1) == (at_once > 1)
            assert padded is None or SEEN[orchestrator].padded == (padded and at_once > 1)
            ends.append((orchestrator, watched))
    (one, alone), (other, grouped) = ends
    near(one.params, other.params, tolerance)
    for name, buffer in one.client.named_buffers():
        near(buffer, dict(other.client.named_buffers())[name], tolerance)
    for a, b in zip(alone.cohorts, grouped.cohorts, strict=True):
        assert a.clients == b.clients
        near(a.deltas, b.deltas, tolerance)
        for x, y in zip(a.results, b.results, strict=True):
            assert (x.num_samples, x.num_steps, x.learning_rate) == (y.num_samples, y.num_steps, y.learning_rate)
            assert x.normalizer == pytest.approx(y.normalizer)
            assert x.loss == pytest.approx(y.loss, rel=max(tolerance, 1e-7))
            assert x.metrics == pytest.approx(y.metrics, rel=1e-6)
            assert x.shown == y.shown
            assert x.stays.keys() == y.stays.keys()
            for name in x.stays:
                near(x.stays[name], y.stays[name], tolerance)
            for one_buffer, other_buffer in zip(x.buffers, y.buffers, strict=True):
                near(one_buffer, other_buffer, tolerance)


def near(one: Tensor, other: Tensor, tolerance: float) -> None:
    assert one.shape == other.shape
    assert float((one.double() - other.double()).abs().max()) <= tolerance


class Pull(FederatedCallback):
    """FedProx's term, written as a loss: mu / 2 * |w - anchor|^2."""

    stacks = True

    def __init__(self, mu: float = 0.1) -> None:
        self.mu = mu

    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        return loss + self.mu / 2 * (run.params - run.anchor).square().sum()


class Tiny(TinyClassifier):
    """The tiny classifier with another optimizer; it logs."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self.make = make

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = super().training_step(batch, batch_idx)
        self.log("train/own", outputs["loss"], prog_bar=True)
        self.log("train/right", (outputs["logits"].argmax(1) == batch[1]).double().mean(), batch_size=len(batch[1]))
        self.log("train/one", 1.0)
        return outputs

    def configure_optimizers(self) -> Any:
        return self.make(self)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, weight_decay=0.1),
    "dampening": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, dampening=0.5, maximize=True),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.1, lr_decay=0.1),
    "groups": lambda m: torch.optim.SGD(
        [{"params": m.net[1].parameters(), "lr": 0.01, "momentum": 0.9}, {"params": m.net[0].parameters()}], lr=0.1
    ),
    "a part": lambda m: torch.optim.Adam([m.net[1].bias, m.net[0].weight], lr=0.1),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "groups of two": {"size": 2},
    "more than there are": {"size": 100},
    "epochs": {"local_epochs": 2},
    "half epochs": {"local_epochs": 1.5},
    "steps": {"local_steps": 7},
    "stragglers": {"local_epochs": 4, "stragglers": 0.5},
    "decay": {"local_lr_decay": 0.5},
    "clipped norm": {"gradient_clip_val": 0.05},
    "clipped value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "large updates": {"max_update_norm": 100.0},
}
SEVERAL = (CLIENT_RULES["Scaffold"], lambda: FedProx(0.1), lambda: SignFlip(2), ClientMonitor, FedNova)
TOGETHER = {name: (make,) for name, make in CLIENT_RULES.items() if make().stacks}
RULES: dict[str, Any] = {"none": (), "Pull": (Pull,), "several": SEVERAL, **TOGETHER}
RULES |= {"LocalPart": (PERSONAL["LocalPart"], Pull), "FedBN": (PERSONAL["FedBN"], lambda: FedProx(0.1))}
RULES |= {"PerFedAvg": (PERSONAL["PerFedAvg"], PERSONAL["LocalPart"])}


class Case(NamedTuple):
    optimizer: str
    settings: str
    rules: str

    def __str__(self) -> str:
        return ", ".join(self)


def is_possible(case: Case) -> bool:
    """SCAFFOLD takes the clients' gradients from their updates, under SGD with one rate alone."""
    return case.optimizer in ("SGD", "momentum") or not any(isinstance(rule(), Scaffold) for rule in RULES[case.rules])


CASES = [case for case in itertools.starmap(Case, itertools.product(OPTIMIZERS, SETTINGS, RULES)) if is_possible(case)]
PAIRS = covering(CASES, lambda case: case)  # every two together
QUICK = covering(PAIRS, lambda case: case, together=1)


@every(PAIRS, QUICK)
def test_at_once_is_one_by_one(row: Case) -> None:
    compare(lambda: Tiny(OPTIMIZERS[row.optimizer]), *RULES[row.rules], **SETTINGS[row.settings])


class Means(Tiny):
    """Without BatchNorm: the loss and all that is logged are means over the examples."""

    def __init__(self, make: Callable[[Any], Any] = OPTIMIZERS["momentum"]) -> None:
        super().__init__(make)
        self.net[0] = nn.Tanh()  # in place of BatchNorm


class Mixed(TinyData):
    """The largest client, first in its group, has its examples read one by one; those of the others lie in memory."""

    def client_dataset(self, client: int) -> Any:
        examples = super().client_dataset(client)
        return [examples[row] for row in range(len(examples))] if client == 5 else examples


def test_data_of_which_some_are_in_memory() -> None:
    compare(Means, data=Mixed)


class Most(Means):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = super().training_step(batch, batch_idx)
        self.log("train/most", outputs["logits"].max(), reduce_fx="max")
        return outputs


class Counts(Means):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = super().training_step(batch, batch_idx)
        self.log("train/count", (outputs["logits"].argmax(1) == batch[1]).sum().double(), reduce_fx="sum")
        return outputs


class Sums(Means):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = super().training_step(batch, batch_idx)
        return {**outputs, "loss": outputs["loss"] * len(batch[0])}


@pytest.mark.parametrize(("make", "padded"), [(Means, True), (Most, False), (Counts, False), (Sums, False)])
def test_only_means_over_examples_are_evaluated_example_by_example(make: Any, padded: bool) -> None:
    """Clients of different sizes then share one call a step."""
    compare(make, padded=padded, local_epochs=2)


@every([name for name in RULES if name != "FedBN"], ["several", "FedSAM", "MOON", "LocalPart"])
def test_rules_for_clients_of_different_sizes(row: str) -> None:
    padded = None if row == "FedSOL" else row != "FedDecorr"  # FedSOL may see its values as no means
    compare(Means, *RULES[row], padded=padded, local_epochs=1.5)


def test_the_norm_that_is_clipped_is_that_of_the_optimizers_parameters() -> None:
    compare(lambda: Tiny(OPTIMIZERS["a part"]), **SETTINGS["clipped norm"])


def test_float32() -> None:
    compare(lambda: TinyClassifier().float(), data=SingleData, tolerance=1e-6, local_epochs=2)


def test_a_term_of_the_loss_on_the_weights_reaches_the_gradient() -> None:
    """FedProx adds the gradient of this term, so both train the same model."""
    ends = []
    for rules in ([Pull()], [FedProx(0.1)], []):
        orchestrator = FederatedOrchestrator(TinyClassifier(), local_epochs=2)
        trainer(*rules, rounds=2).fit(orchestrator, datamodule=TinyData(batch_size=4))
        ends.append(orchestrator.params.clone())
    near(ends[0], ends[1], EXACT)
    assert float((ends[0] - ends[2]).abs().max()) > 1e-3


class Drops(Net):
    def between(self) -> list[nn.Module]:
        return [nn.Tanh(), nn.Dropout(0.5)]


class FourData(TinyData):
    """Four clients with the same 8 examples in the same order."""

    num_clients = 4

    def client_dataset(self, client: int) -> Any:
        generator = torch.Generator().manual_seed(0)
        inputs, labels = torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)
        return torch.utils.data.TensorDataset(inputs, labels)

    in_rows = True

    def client_batches(self, client: int, order: torch.Generator) -> Any:
        return [[x, y] for x, y in zip(*(t.split(4) for t in self.client_dataset(client).tensors), strict=True)]

    def epoch_rows(self, client: int, order: torch.Generator) -> Any:
        return self.client_dataset(client), torch.arange(8)

    @classmethod
    def run(cls, make: Any, **settings: Any) -> Tensor:
        watched = Capture()
        orchestrator = FederatedOrchestrator(make(), clients_at_once=4, **settings)
        trainer(watched).fit(orchestrator, datamodule=cls(batch_size=4))
        assert SEEN[orchestrator].at_once
        return watched.cohort.deltas


def test_dropout_is_drawn_for_each_client_and_by_the_seed() -> None:
    """Clients with the same data end apart, and a second run ends where the first did."""
    ends = [FourData.run(Drops, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
    assert len(torch.unique(ends[0], dim=0)) == 4
    assert len(torch.unique(FourData.run(Net), dim=0)) == 1


class Images(ImageData):
    """Random bytes as images, one channel, three classes."""

    num_classes, mean, std = 3, (0.4,), (0.3,)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(int(train))
        images = torch.randint(256, (60, 1, 2, 2), generator=draw, dtype=torch.uint8)
        return images, torch.randint(3, (60,), generator=draw)


class Hooked(Images):
    """With a hook of its own, which sees the batches of single clients."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        batch = super().on_after_batch_transfer(batch, dataloader_idx)
        assert not isinstance(batch[0], Tensor) or len(batch[0]) <= 4
        return batch


@pytest.mark.parametrize("kind", [Images, Hooked])
def test_examples_go_through_the_hooks_as_one_by_one(kind: type[Images]) -> None:
    ends = []
    for at_once in (1, 4):
        torch.manual_seed(0)
        module = ImageClassifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), num_classes=3)
        orchestrator = FederatedOrchestrator(module, clients_at_once=at_once, on_bad_update="raise")
        trainer(rounds=2, limit_val_batches=0).fit(orchestrator, datamodule=kind(num_clients=4, batch_size=4))
        assert SEEN[orchestrator].group_size == at_once
        ends.append(orchestrator.params)
    near(*ends, 1e-6)


class Breaks(FederatedCallback):
    """A rule that says that it serves groups, and in round 2 does not."""

    stacks = True

    def on_before_client_step(self, run: LocalRun) -> None:
        if run.round == 2 and run.params.ndim == 2:
            raise ValueError("not for matrices")


def test_a_rule_that_breaks_a_group_is_named_and_the_clients_train() -> None:
    alone, grouped = (FederatedOrchestrator(TinyClassifier(), clients_at_once=at_once) for at_once in (1, 6))
    trainer(Breaks(), rounds=3).fit(alone, datamodule=TinyData(batch_size=4))
    said = (
        "round 2: 6 clients train one after another, since training them at once fails: RuleError: round 2: "
        "Breaks.on_before_client_step raises ValueError on clients .*: not for matrices"
    )
    with pytest.warns(UserWarning, match=said):
        trainer(Breaks(), rounds=3).fit(grouped, datamodule=TinyData(batch_size=4))
    near(alone.params, grouped.params, EXACT)


# What keeps clients apart is said


class Scheduled(Net):
    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=0.1)
        return [sgd], [torch.optim.lr_scheduler.ExponentialLR(sgd, 0.9)]


class Warms(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * (1 + self.global_step)


class Decides(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        return loss if float(loss.detach()) > 1 else 2 * loss


class Alternates(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) if batch_idx else 2 * self.loss(batch)


class Chooses(Net):
    def configure_optimizers(self) -> Any:
        own: Any = self.trainer
        return torch.optim.SGD(self.parameters(), lr=0.1 / (1 + own.run.client))


class Own(FedProx):
    def on_before_client_step(self, run: LocalRun) -> None:
        run.grads.add_((run.params - run.anchor) / (1 + run.params.norm()))


APART: dict[str, tuple[Any, list[Any], dict[str, Any], str]] = {
    "manual": (manual.Manual, [], {}, "Manual optimizes manually"),
    "hooks": (optimizers.Watched, [], {}, "Watched defines on_train_batch_end"),
    "schedule": (Scheduled, [], {}, "Scheduled has a learning-rate schedule within a round"),
    "optimizer": (optimizers.LBFGS, [], {}, "LBFGS is not one of SGD, Adam, AdamW, RMSprop, Adagrad"),
    "progress": (Warms, [], {}, "Warms.training_step asks for trainer.global_step"),
    "an optimizer of its own": (Chooses, [], {}, "Chooses.configure_optimizers asks for trainer.run"),
    "unused": (networks.FrozenBackbone, [], {}, "what a client of FrozenBackbone sends differs by"),
    "data": (Decides, [], {}, r"Decides.training_step fails for several clients: .*\.item\(\)"),
    "index": (Alternates, [], {}, "Alternates.training_step fails for several clients: it uses batch_idx"),
    "accumulation": (Net, [], {"accumulate_grad_batches": 2}, "accumulate_grad_batches is above 1"),
    "a rule of the user's": (Net, [lambda: Own(0.1)], {}, "Own has hooks for single clients"),
}


@pytest.mark.parametrize("name", APART)
def test_what_keeps_clients_apart_is_said_and_changes_nothing(name: str) -> None:
    make, rules, settings, reason = APART[name]
    ends = []
    for at_once in (1, 4):
        orchestrator = FederatedOrchestrator(make(), clients_at_once=at_once, on_bad_update="raise", **settings)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer(*(rule() for rule in rules), rounds=2).fit(orchestrator, datamodule=FourData(batch_size=4))
        said = [str(each.message) for each in caught if "clients_at_once" in str(each.message)]
        ends.append(orchestrator.params)
    assert torch.equal(*ends)
    (line,) = said
    assert re.fullmatch(f"clients_at_once: clients train one after another, since {reason}.*", line), line


@pytest.mark.parametrize("at_once", [0, -1])
def test_at_least_one(at_once: int) -> None:
    with pytest.raises(ConfigurationError, match=f"clients_at_once must be at least 1, got {at_once}"):
        FederatedOrchestrator(Net(), clients_at_once=at_once)


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_a_client_that_fails_is_left_out_alone(fault: Any) -> None:
    ends = []
    for at_once in (1, 6):
        watched, failing = Capture(), FaultInjection(fault, clients=[2])
        orchestrator = FederatedOrchestrator(TinyClassifier(), clients_at_once=at_once)
        trainer(failing, watched).fit(orchestrator, datamodule=TinyData(batch_size=4))
        ends.append(watched.cohort)
    assert ends[0].clients == ends[1].clients == (0, 1, 3, 4, 5)
    near(ends[0].deltas, ends[1].deltas, EXACT)


@pytest.mark.slow
def test_any_number_of_devices_and_stops_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three groups of at most two, on one device and on two, and stopped after the first round."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    settings = ["--data.num_clients", "5", "--model.clients_at_once", "2", "--trainer.callbacks+=Scaffold"]
    fit("--experiment", "one", "--trainer.max_epochs", 3, *settings)
    fit_on(2, "--experiment", "two", "--trainer.max_epochs", 3, *settings)
    fit("--experiment", "stopped", "--trainer.max_epochs", 1, *settings)
    fit("--experiment", "stopped", "--trainer.max_epochs", 3, "--ckpt_path", "last", *settings)
    files = [tmp_path / "runs" / name / "version_0/checkpoints/last.ckpt" for name in ("one", "two", "stopped")]
    states = [torch.load(file, weights_only=True)["state_dict"] for file in files]
    for state in states[1:]:
        assert all(torch.equal(states[0][name], state[name]) for name in states[0])


class Wide(Net):
    def between(self) -> list[nn.Module]:
        return [nn.Linear(8, 1 << 16), nn.Linear(1 << 16, 8)]


@pytest.mark.parametrize(("make", "size"), [(Net, 4), (Wide, 1)])
def test_auto_stacks_small_models_alone(make: type[Net], size: int) -> None:
    orchestrator = FederatedOrchestrator(make(), clients_at_once="auto")
    trainer().fit(orchestrator, datamodule=FourData(batch_size=4))
    assert SEEN[orchestrator].group_size == size
