"""local_graph: steps that are recorded and replayed end at the bits of steps that run, and say what keeps them from it.

``recorded`` stands for CUDA graphs; where there is a CUDA device, one test uses that.
"""

import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.plugins.precision import MixedPrecision
from recorded import Recorder
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from torchmetrics import MeanMetric
from toy import Capture, DecaysEverySecondStep, trainer

from fl_lightning import ConfigurationError, FederatedCallback, FederatedDataModule, FederatedOrchestrator, LocalRun
from fl_lightning.callbacks import FedAdam, FedNova, FedProx, FedSAM, FocalLoss, GradientHarmonization, Scaffold
from fl_lightning.engine import local_graph
from fl_lightning.engine.capture import CAPTURES
from fl_lightning.models import ImageClassifier, TwoNN

LINE = "local_graph: local steps are not replayed as graphs, since "


class Data(FederatedDataModule):
    """Five clients of 6, 7, 10, 11 and 14 examples: batches of four, and last ones of two and three.

    Args:
        bad: a client whose labels are out of range; None for no such client.
        nan: a client with an input that is nan; None for no such client.
        settings: of FederatedDataModule.
    """

    num_clients = 5

    def __init__(self, bad: int | None = None, nan: int | None = None, **settings: Any) -> None:
        super().__init__(batch_size=4, **settings)
        self.bad, self.nan = bad, nan

    def client_dataset(self, client: int) -> Dataset[Any]:
        draw = torch.Generator().manual_seed(client)
        size = (6, 7, 10, 11, 14)[client]
        x, y = torch.randn(size, 6, generator=draw), torch.randint(3, (size,), generator=draw)
        x[0] = float("nan") if client == self.nan else x[0]
        return TensorDataset(x, y + 3 if client == self.bad else y)


class Net(LightningModule):
    """Batch normalisation, dropout, a head that no loss reaches, and two metrics, of which one changes in the step."""

    def __init__(self, optimizer: Any = torch.optim.SGD, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))
        self.unused = nn.Linear(2, 2)
        self.optimizer, self.settings = optimizer, {"lr": 0.1, **settings}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.net(batch[0])
        self.log("right", (logits.argmax(1) == batch[1]).float().mean())
        self.log("scale", self.net[1].weight[0], on_step=True, reduce_fx="max")
        return nn.functional.cross_entropy(logits, batch[1])

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), **self.settings)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    """The stand-in, in use for tensors on the CPU; a form's second batch is recorded."""
    monkeypatch.setitem(CAPTURES, "cpu", Recorder)
    monkeypatch.setattr(local_graph, "OFTEN", 2)
    monkeypatch.setattr(Recorder, "all", [])
    return Recorder


def replays() -> int:
    return sum(each.replays for each in Recorder.all)


def fit(
    graph: Any,
    make: Callable[[], LightningModule],
    *callbacks: Callback,
    data: dict[str, Any] | None = None,
    trained: dict[str, Any] | None = None,
    **settings: Any,
) -> list[Any]:
    """Three rounds; what clients and rounds ended with."""
    capture, chosen = Capture(), {"on_bad_update": "raise", **settings}
    orchestrator = FederatedOrchestrator(make(), local_epochs=2, local_graph=graph, **chosen)
    trainer(*callbacks, capture, **{"max_epochs": 3, **(trained or {})}).fit(
        orchestrator, datamodule=Data(**(data or {}))
    )
    results = [result for cohort in capture.cohorts for result in cohort.results]
    told = [
        (each.client, each.loss, each.num_steps, each.normalizer, each.learning_rate, each.metrics) for each in results
    ]
    buffers = [buffer for held in capture.buffers for buffer in held.values()]
    return [told, *capture.params, *buffers, orchestrator.params, *orchestrator.client.buffers()]


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two fits ended with the same bits."""
    return one[0] == other[0] and len(one) == len(other) and all(map(torch.equal, one[1:], other[1:]))


MOMENTUM = {"momentum": 0.9, "weight_decay": 0.01}
CASES: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any]]] = {  # of the module, rules, settings
    "SGD": ({}, [], {}),
    "momentum": (MOMENTUM, [], {}),
    "momentum, foreach": ({**MOMENTUM, "foreach": True}, [], {}),
    "momentum, fused": ({**MOMENTUM, "fused": True}, [], {}),
    "Nesterov's": ({**MOMENTUM, "nesterov": True, "maximize": True, "lr": 1e-3}, [], {}),
    "dampening": ({"momentum": 0.9, "dampening": 0.5}, [], {}),
    "rates that fall": (MOMENTUM, [], {"local_lr_decay": 0.5}),
    "a schedule of rounds": (MOMENTUM, [], {"local_lr_scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1)}),
    "clipping by norm": (MOMENTUM, [], {"gradient_clip_val": 0.1}),
    "clipping by value": ({}, [], {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    "part of the clients": (MOMENTUM, [], {"data": {"participation": 0.4}}),
    "groups of clients": (MOMENTUM, [], {"data": {"clients_per_batch": 3}}),
    "stragglers": (MOMENTUM, [], {"stragglers": 0.5}),
    "bf16-mixed": (MOMENTUM, [], {"trained": {"precision": "bf16-mixed"}}),
    "Adam": ({"optimizer": torch.optim.Adam}, [], {"gradient_clip_val": 0.1}),
    "AdamW": ({"optimizer": torch.optim.AdamW, "amsgrad": True}, [], {"local_lr_decay": 0.9}),
    "GradientHarmonization": (MOMENTUM, [GradientHarmonization], {}),
    "FedNova": (MOMENTUM, [FedNova], {}),
    "FedAdam": ({}, [FedAdam], {}),
    "FedProx": (MOMENTUM, [lambda: FedProx(0.1)], {"gradient_clip_val": 0.1}),
    "Scaffold": ({}, [Scaffold], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_replayed_steps_end_at_the_same_bits(case: str, recorder: type[Recorder]) -> None:
    """Models, buffers, losses, metrics and numbers of steps, client by client and round by round."""
    module, rules, settings = CASES[case]
    expected = fit(False, lambda: Net(**module), *(rule() for rule in rules), **settings)
    assert not Recorder.all
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="local_graph")
        found = fit(True, lambda: Net(**module), *(rule() for rule in rules), **settings)
    assert same(found, expected)
    assert replays() > (15 if case == "part of the clients" else 40)
    assert 1 <= sum(len(each.recordings) for each in Recorder.all) <= 4  # one for each size of a batch


class Scheduled(DecaysEverySecondStep, Net): ...


class Hooked(Net):
    """Its optimizer has a hook of its own."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.register_step_pre_hook(self.grow)
        return optimizer

    def grow(self, *_: Any) -> None:
        self.unused.weight.data.add_(0.1)


class Replacing(torch.optim.SGD):
    """Gives the parameters other memory at each step."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for parameter in (p for group in self.param_groups for p in group["params"]):
            parameter.data = parameter.data.clone()
        return loss


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scheduled(**MOMENTUM),
        lambda: Hooked(**MOMENTUM),
        lambda: Net(Replacing, **MOMENTUM),
        lambda: Net(torch.optim.LBFGS, max_iter=3),
    ],
)
def test_other_optimizers_step_outside_of_the_graphs(make: Callable[[], Net], recorder: type[Recorder]) -> None:
    assert same(fit(True, make), fit(False, make))
    assert replays() > 40


def test_a_shipped_classifier_validates_between_rounds(recorder: type[Recorder]) -> None:
    """Its torchmetrics objects count up in each validation, which asks for no new capture."""

    class Validated(Data):
        def val_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(self.client_dataset(0), batch_size=3)

    ends = []
    for graph in (False, True):
        torch.manual_seed(0)
        orchestrator = FederatedOrchestrator(
            ImageClassifier(TwoNN(num_classes=3, in_features=6), num_classes=3), local_graph=graph
        )
        trainer(max_epochs=4).fit(orchestrator, datamodule=Validated())
        ends.append(orchestrator.params.clone())
    assert torch.equal(*ends)
    assert replays() > 20
    assert sum(len(each.recordings) for each in Recorder.all) <= 4


def test_rare_forms_are_not_captured(recorder: type[Recorder], monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of four come 2 · (1 + 1 + 2 + 2 + 3) = 18 times a round, those of two 6 times, those of three 4 times.

    The 20th of them is the first that is captured.
    """
    monkeypatch.setattr(local_graph, "OFTEN", 20)
    assert same(fit(True, lambda: Net(**MOMENTUM)), fit(False, lambda: Net(**MOMENTUM)))
    assert replays() == 3 * 18 - 19 + 1  # one to compare
    assert sum(len(each.recordings) for each in Recorder.all) == 1


# Obstacles


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        optimizer.step()
        return loss.detach()


class Ending(Net):
    def on_after_backward(self) -> None:
        pass


class Indexed(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * (1 + batch_idx % 2)


class Asking(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * (1 + self.global_step)


class Waiting(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss * 2 if loss > 1 else loss


class Masking(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen = batch[1] >= 0
        return super().training_step([batch[0][chosen], batch[1][chosen]], batch_idx)


class Counting(Net):
    steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        return super().training_step(batch, batch_idx) / self.steps


class Recordful(Net):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.records.append(loss.detach())
        return loss


class Measuring(Net):
    def __init__(self) -> None:
        super().__init__()
        self.measure = MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.measure.update(loss.detach())
        return loss


class LoggingNumbers(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("one", 1.0)
        return super().training_step(batch, batch_idx)


class Drawing(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * random.random()


class Sparse(Net):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 8, sparse=True)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return nn.functional.cross_entropy(self.net[4](self.table(batch[1])), batch[1])


class Explaining(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.net(batch[0])
        return {"loss": nn.functional.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}


class Silent(Net):
    """No loss, and so no step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


class Changing(Net):
    """Other batches than lists of tensors."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [*batch, len(batch)]


OBSTACLES: dict[str, tuple[Callable[[], Net], list[Any], dict[str, Any], str]] = {
    "manual optimization": (Manual, [], {}, "Manual optimizes manually"),
    "hooks": (Ending, [], {}, "Ending defines on_after_backward"),
    "accumulation": (Net, [], {"accumulate_grad_batches": 2}, "accumulate_grad_batches is above 1"),
    "a rule's loss": (Explaining, [FocalLoss], {}, "FocalLoss acts inside a local step"),
    "a rule's closure": (Net, [lambda: FedSAM(0.1)], {}, "FedSAM acts inside a local step"),
    "batch_idx": (Indexed, [], {}, "a step of Indexed is not captured: it uses batch_idx"),
    "global_step": (Asking, [], {}, r"Asking.training_step asks for trainer\.global_step"),
    "a wait": (Waiting, [], {}, "a step of Waiting is not captured: operation not permitted when stream is capturing"),
    "a mask": (Masking, [], {}, "a step of Masking is not captured: operation not permitted when stream is capturing"),
    "an attribute": (Counting, [], {}, "Counting.training_step sets attributes"),
    "a list": (Recordful, [], {}, "Recordful.training_step sets attributes of the module, or adds to its lists"),
    "a metric": (Measuring, [], {}, "Measuring.training_step sets attributes"),
    "a number": (LoggingNumbers, [], {}, "LoggingNumbers logs one, which is not a tensor on cpu"),
    "the host's draws": (Drawing, [], {}, "Drawing.training_step draws random numbers on the host"),
    "sparse gradients": (Sparse, [], {}, "a gradient of Sparse is sparse"),
    "no loss": (Silent, [], {}, "Silent.training_step returns no loss"),
    "other batches": (Changing, [], {}, "a batch is not a list or tuple of tensors on cpu"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", OBSTACLES)
def test_obstacles_leave_the_steps_as_they_are_and_are_named_once(case: str, recorder: type[Recorder]) -> None:
    make, rules, settings, reason = OBSTACLES[case]
    expected = fit(False, make, *(rule() for rule in rules), **settings)
    with pytest.warns(UserWarning, match=LINE + reason) as caught:
        found = fit(True, make, *(rule() for rule in rules), **settings)
    assert [str(each.message)[: len(LINE)] for each in caught].count(LINE) == 1
    assert str(found) == str(expected) if case == "no loss" else same(found, expected)  # nan
    assert replays() == 0


def test_loss_scaling_is_an_obstacle(recorder: type[Recorder]) -> None:
    def scaled() -> dict[str, Any]:
        return {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=4.0))]}

    expected = fit(False, Net, trained=scaled())
    with pytest.warns(UserWarning, match=LINE + "precision is 16-mixed"):
        assert same(fit(True, Net, trained=scaled()), expected)


@pytest.mark.parametrize("wrong", [{"bad": 2}, {"nan": 2}])
def test_a_client_that_fails_leaves_nothing_behind(wrong: dict[str, int], recorder: type[Recorder]) -> None:
    """Whether it raises in a step that would be captured, or fills the momentum with nan: others are as always."""
    ends = []
    for graph in (False, True):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ends.append(fit(graph, lambda: Net(**MOMENTUM), data=wrong, on_bad_update="skip"))
        said = [str(each.message) for each in caught]
        assert sum("client 2 is left out" in each for each in said) == 3
        assert not [each for each in said if each.startswith("local_graph")]
    assert str(ends[0][0]) == str(ends[1][0])
    assert all(
        torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(*(e[1:] for e in ends), strict=True)
    )
    assert replays() > 30


def test_a_client_that_raises_is_not_taken_for_an_obstacle(recorder: type[Recorder], monkeypatch: Any) -> None:
    """The first batch of each form is captured: in the first round, the bad client's comes first of all.

    The next client's is the second and last capture, so that batches of two and three are trained as usual.
    """
    monkeypatch.setattr(local_graph, "OFTEN", 1)
    monkeypatch.setattr(local_graph, "MOST", 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(True, lambda: Net(**MOMENTUM), data={"bad": 0}, on_bad_update="skip")
    assert sum("client 0 is left out" in str(each.message) for each in caught) == 3
    assert not [each for each in caught if "local_graph" in str(each.message)]
    assert replays() > 40


# What graphs rely on


class Moving(FederatedCallback):
    """Changes what the graphs hold, after the first round or after each."""

    def __init__(self, change: Callable[[Any, int], None], every: bool = False) -> None:
        self.change, self.every = change, every

    def on_round_end(self, orchestrator: Any, cohort: Any) -> None:
        if self.every or cohort.round == 1:
            self.change(orchestrator.client, cohort.round)


def drop_less(module: Any, round: int) -> None:
    module.net[3].p = 0.1 * round


def replace_a_buffer(module: Any, round: int) -> None:
    module.net[1].running_mean = torch.full((8,), 0.5)


def move_a_buffer(module: Any, round: int) -> None:
    module.net[1].running_mean.data = torch.full((8,), 0.5)


def move_a_parameter(module: Any, round: int) -> None:
    module.net[0].weight.data = module.net[0].weight.data.clone() + 1


def evaluate_the_norm(module: Any, round: int) -> None:
    module.net[1].eval()


@pytest.mark.parametrize("change", [drop_less, replace_a_buffer, move_a_buffer, move_a_parameter, evaluate_the_norm])
def test_what_changes_between_rounds_is_captured_again(change: Any, recorder: type[Recorder]) -> None:
    ends = [fit(graph, lambda: Net(**MOMENTUM), Moving(change)) for graph in (False, True)]
    assert same(*ends)
    assert replays() > 40


def test_a_module_that_changes_all_the_time_falls_back(recorder: type[Recorder], monkeypatch: Any) -> None:
    monkeypatch.setattr(local_graph, "MOST", 3)
    expected = fit(False, lambda: Net(**MOMENTUM), Moving(drop_less, every=True))
    with pytest.warns(UserWarning, match=LINE + "Net changes between clients"):
        found = fit(True, lambda: Net(**MOMENTUM), Moving(drop_less, every=True))
    assert same(found, expected)
    assert 0 < replays() < 50


def test_a_replay_that_ends_elsewhere_is_an_obstacle(recorder: type[Recorder], monkeypatch: Any) -> None:
    """Such as one that lacks a kernel which was launched on another stream."""
    make = Recorder.__call__

    def incomplete(self: Recorder, step: Any) -> Any:
        result, replay = make(self, step)
        self.recordings[-1].calls = [call for call in self.recordings[-1].calls if "tanh_backward" not in str(call[0])]
        return result, replay

    expected = fit(False, lambda: Net(**MOMENTUM))
    monkeypatch.setattr(Recorder, "__call__", incomplete)
    with pytest.warns(UserWarning, match=LINE + "a replayed step of Net gives another result"):
        assert same(fit(True, lambda: Net(**MOMENTUM)), expected)


def test_graphs_are_dropped_at_the_end_of_a_fit(recorder: type[Recorder]) -> None:
    seen = []

    class Watch(FederatedCallback):
        def on_client_end(self, orchestrator: Any, run: LocalRun) -> None:
            seen.append(weakref.ref(orchestrator._training))

    fit(True, Net, Watch())
    assert seen[0]() is None


# The setting


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    lines: list[str] = []
    monkeypatch.setattr(local_graph, "rank_zero_info", lines.append)
    return lines  # type: ignore[return-value]


def test_auto_says_what_it_found_without_a_warning(recorder: type[Recorder], said: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="local_graph")
        fit("auto", Counting)
        fit("auto", Ending)
        fit("auto", Net)
    assert [each.removeprefix(LINE)[:8] for each in said] == ["Counting", "Ending d"]


def test_on_a_cpu_only_true_says_a_word(said: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="local_graph")
        ends = [fit(graph, Net) for graph in (False, "auto")]
    with pytest.warns(UserWarning, match=LINE + "they need a CUDA device, got cpu"):
        ends.append(fit(True, Net))
    assert not said
    assert same(ends[0], ends[1])
    assert same(ends[0], ends[2])


def test_other_values_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="local_graph must be 'auto', True or False, got 'yes'"):
        FederatedOrchestrator(Net(), local_graph="yes")  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", CASES)
def test_on_a_cuda_device_graphs_end_at_the_same_bits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_graph, "OFTEN", 2)
    module, rules, settings = CASES[case]
    trained = {"accelerator": "cuda", "devices": 1, **settings.get("trained", {})}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="local_graph")
        ends = [
            fit(graph, lambda: Net(**module), *(rule() for rule in rules), **{**settings, "trained": trained})
            for graph in (False, True)
        ]
    assert same(*ends)
