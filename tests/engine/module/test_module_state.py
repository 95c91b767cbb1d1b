"""Every client starts from the whole global module, and leaves nothing behind: not even a client that fails."""

from typing import Any

import pytest
import torch
from lib.toy import A, B, Capture, Net, Notes, Quadratic, Same, ToyData, close, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.engine.module.state import ModuleState


def fit(module: LightningModule, rounds: int = 1, **settings: Any) -> Capture:
    """Train on T; what a last callback saw."""
    capture = Capture()
    orchestrator = FederatedOrchestrator(module, **{"on_bad_update": "raise", **settings})
    trainer(capture, rounds=rounds).fit(orchestrator, datamodule=ToyData())
    return capture


class Teacher(Quadratic):
    """A momentum teacher: t ← (t + w)/2 after each step, in a way that moves no version counter."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Parameter(torch.zeros(2, dtype=torch.float64), requires_grad=False)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.teacher.data.mul_(0.5).add_(self.w.data, alpha=0.5)


class ReplacedTeacher(Teacher):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.teacher.data = 0.5 * self.teacher.data + 0.5 * self.w.data


class NewTeacher(Teacher):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.teacher = nn.Parameter((0.5 * self.teacher + 0.5 * self.w).detach(), requires_grad=False)


@pytest.mark.parametrize("make", [Teacher, ReplacedTeacher, NewTeacher])
def test_frozen_parameters_that_move_are_averaged_by_samples(make: type[Teacher]) -> None:
    """Client 0: w = (0.1, -0.2), (0.19, -0.36), so t = (0.05, -0.1), (0.12, -0.23). Client 1: w = (-0.6, 0.1),
    (-1.02, 0.195), (-1.314, 0.28525), so t = (-0.3, 0.05), (-0.66, 0.1225), (-0.987, 0.203875).
    The mean by n = (1, 3): ((0.12 - 3·0.987)/4, (-0.23 + 3·0.203875)/4).
    """
    module = make()
    capture = fit(module)
    first, second = (buffers for result in capture.cohort.results for buffers in [result.buffers])
    assert close(first[0], (0.12, -0.23))  # type: ignore[arg-type]  # a frozen parameter, not an empty buffer
    assert close(second[0], (-0.987, 0.203875))  # type: ignore[arg-type]
    assert close(module.teacher, (-0.71025, 0.09540625))
    assert capture.params[0].shape == (2,)


class Unfreezes(Quadratic):
    """f(w, v) = f(w) + f(v), where v is frozen until training starts."""

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.zeros(2, dtype=torch.float64), requires_grad=False)
        self.flags: list[bool] = Notes()

    def on_train_start(self) -> None:
        self.flags.append(self.v.requires_grad)
        self.v.requires_grad_(True)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        a, b = batch
        return super().training_step(batch, batch_idx) + (a * (self.v - b) ** 2 / 2).sum()


def test_unfreezing_while_a_client_trains_lasts_as_long_as_the_client() -> None:
    """V trains as w does, on each client from the global v; averaged as a buffer is, both stay the same."""
    module = Unfreezes()
    fit(module, rounds=3)
    assert module.flags == [False] * 7, "the first client trains twice"
    assert not module.v.requires_grad
    assert module.v.grad is None
    assert close(module.v, module.w)


class Swaps(Quadratic):
    """Registers another parameter in place of the trained one, one larger."""

    shape = (2,)

    def on_train_epoch_end(self) -> None:
        self.w = nn.Parameter((self.w.detach() + 1).expand(self.shape).clone())


class Grows(Swaps):
    shape = (2, 2)


def test_a_parameter_that_is_replaced_while_a_client_trains_counts() -> None:
    """The global model of T plus one."""
    plain, module = Quadratic(), Swaps()
    before = module.w
    fit(plain)
    fit(module)
    assert module.w is before
    assert close(module.w, plain.w + 1)
    with pytest.raises(ConfigurationError, match=r"replaced the parameter w of shape \(2,\) by \(2, 2\)"):
        fit(Grows())


class Unfrozen(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1).requires_grad_(False)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.second(self.first(batch[0].float().reshape(-1, 1))).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_validation_end(self) -> None:
        self.second.requires_grad_(True)

    def validation_step(self, batch: Any, batch_idx: int) -> None: ...


class WithValidation(ToyData):
    def val_dataloader(self) -> Any:
        return [torch.zeros(1)]


def test_another_trainable_set_between_rounds_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"round 2: the trainable parameters of Unfrozen have changed.*second.weight"
    ):
        trainer(rounds=2).fit(FederatedOrchestrator(Unfrozen()), datamodule=WithValidation())


class Messy(Quadratic):
    """Changes whatever a module has besides its parameters; ``starts`` holds what each client started with."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails, self.steps, self.hidden = fails, 0, None
        self.plain, self.outputs = torch.zeros(1), []
        self.net, self.mean = nn.Sequential(nn.Linear(1, 1), nn.Dropout()).double().requires_grad_(False), MeanMetric()
        self.scores = MetricCollection([BinaryAUROC(), BinaryAveragePrecision()])
        self.extra = {"count": 0}
        self.starts: list[Any] = Notes()
        self.hook_calls: list[int] = []

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state

    def on_train_start(self) -> None:
        flags, modes = [p.requires_grad for p in self.parameters()], [part.training for part in self.modules()]
        metrics = self.mean.update_count, [len(m.preds) for m in self.scores.values(copy_state=False)]
        self.net(torch.ones(1, 1).double())
        mine = self.steps, self.hidden, float(self.plain), dict(self.extra), len(self.outputs), len(self.hook_calls)
        self.starts.append((flags, modes, metrics, len(self.net), *mine))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.steps += 1
        self.hidden = loss.detach()
        self.plain += 1
        self.extra["count"] += 1
        self.mean.update(1.0)
        self.scores.update(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
        self.log("mean", self.mean)
        self.log_dict(self.scores)
        self.net.eval()
        self.net[0].weight.requires_grad_(True)
        self.net[0].register_forward_hook(lambda *_: self.hook_calls.append(1))
        if batch_idx == 1:
            self.net.append(nn.ReLU())
            if self.fails:
                self.outputs.append(1)
                raise ValueError("no")
            self.starts, self.outputs = self.starts, []
        return loss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fails", [False, True])
def test_a_client_starts_as_if_it_were_the_first(fails: bool) -> None:
    """Two clients, three rounds. A client that fails, here the last of the two, leaves no more than another."""
    module = Messy()
    capture = Fails(fails)
    trainer(capture, rounds=3).fit(FederatedOrchestrator(module), datamodule=ToyData())
    assert len(module.starts) == 7, "the first client trains twice"
    assert all(start == module.starts[0] for start in module.starts)
    assert (module.steps, module.hidden, float(module.plain), module.extra["count"]) == (0, None, 0.0, 0)
    assert [len(cohort.clients) for cohort in capture.cohorts] == [1 if fails else 2] * 3
    assert capture.cohort.metrics["mean"] == capture.cohort.metrics["BinaryAUROC"] == 1.0


class Fails(Capture):
    """Lets client 0 fail in the middle."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails = fails

    def on_client_start(self, orchestrator: Any, run: Any) -> None:
        run.module.fails = self.fails and run.client == 0


def test_what_a_client_counts_is_dropped_and_said_once() -> None:
    with pytest.warns(UserWarning, match="client 0 changed Messy.extra, Messy.steps: every client starts from") as told:
        fit(Messy(), rounds=2)
    assert sum("Messy.steps" in str(each.message) for each in told) == 1


class Toggles(Quadratic):
    """Two parameters that train by turns; client 0 fails in the middle of its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.v = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([parameter], lr=0.1) for parameter in (self.w, self.v)]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:  # type: ignore[override]
        a, b = batch
        for optimizer, parameter in zip(self.optimizers(), (self.w, self.v), strict=True):  # type: ignore[arg-type]
            with optimizer.toggle_model():
                optimizer.zero_grad()
                self.manual_backward((a * (parameter - b) ** 2 / 2).sum())
                if torch.equal(a[0], A[0]):
                    raise ValueError("no")
                optimizer.step()


@pytest.mark.filterwarnings("ignore")
def test_a_client_that_fails_while_a_parameter_is_toggled_freezes_none() -> None:
    """Client 1 alone takes w and v to (-1.314, 0.28525)."""
    module = Toggles()
    fit(module, on_bad_update="skip")
    assert module.w.requires_grad
    assert module.v.requires_grad
    assert close(module.w, (-1.314, 0.28525))
    assert close(module.v, (-1.314, 0.28525))


class Buffered(Quadratic):
    """Buffers of all kinds: empty until the first batch, longer after each, expanded, sparse, shared."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("late", None)
        self.register_buffer("queue", torch.zeros(0))
        self.register_buffer("wide", torch.ones(1).expand(4))
        self.register_buffer("sparse", torch.eye(2).to_sparse())
        self.register_buffer("moving", torch.eye(2).to_sparse())
        self.register_buffer("shared", self.wide)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        mean = batch[1].mean().float()
        self.late = mean if self.late is None else 0.5 * (self.late + mean)
        self.queue = torch.cat([self.queue, mean.reshape(1)])
        self.moving = (self.moving.to_dense() * float(batch[0][0, 0])).to_sparse()
        return super().training_step(batch, batch_idx)


def test_buffers_of_all_kinds() -> None:
    """The means of B are 0 on both clients. Queues are of 2 and 3 entries and so stay as they were. The sparse unit
    matrix times A[0] = 1 twice on client 0, times 3 thrice on client 1: (1 + 3·27)/4 = 20.5.
    """
    module = Buffered()
    with pytest.warns(UserWarning, match="different shapes on different clients"):
        fit(module)
    assert module.late is not None
    assert float(module.late) == float(B.mean(1)[0])
    assert module.queue.tolist() == []
    assert module.wide.tolist() == module.shared.tolist() == [1.0] * 4
    assert torch.equal(module.sparse.to_dense(), torch.eye(2))
    assert torch.equal(module.moving.to_dense(), 20.5 * torch.eye(2))


def test_nothing_is_copied_that_has_not_changed() -> None:
    """The remembered tensors themselves, until a buffer changes."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).requires_grad_(False)
    state = ModuleState(net)
    assert all(now is then for now, then in zip(state.read(), state.buffers, strict=True))
    net(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    changed = [now is not then for now, then in zip(state.read(), state.buffers, strict=True)]
    assert changed == [True, True, True, False, False, False, False]  # mean, variance, count; four frozen parameters
    state.restore()
    assert net[1].num_batches_tracked == 0


class Embeds(Net):
    """An embedding with sparse gradients, of as many examples as it is told to."""

    def __init__(self, optimizer: Any, examples: int) -> None:
        super().__init__()
        self.optimizer, self.examples, self.embedding = optimizer, examples, nn.Embedding(3, 3, sparse=True)

    def loss(self, batch: Any) -> Tensor:
        x, y = (each[: self.examples] for each in batch)
        return nn.functional.cross_entropy(self.net(x).detach() + self.embedding(y), y)

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.embedding.parameters(), lr=0.1)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_under_a_rule_that_reads_them(optimizer: Any) -> None:
    """Reading the gradients changes no bit, of one example; of many, the order of the sum in a row of the gradient."""

    class Reads(Capture):
        def on_before_client_step(self, run: Any) -> None:
            run.grads.mul_(1.0)

    for examples, tolerance in ((1, 0.0), (6, 1e-6)):
        ends = []
        for callback in (Capture(), Reads()):
            orchestrator = FederatedOrchestrator(Embeds(optimizer, examples), on_bad_update="raise")
            trainer(callback).fit(orchestrator, datamodule=Same())
            ends.append(orchestrator.params.clone())
        assert close(ends[0], ends[1], tolerance)
