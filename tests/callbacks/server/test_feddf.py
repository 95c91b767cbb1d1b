"""FedDF on linear classifiers, a proxy set of four points and a batch normalisation, by hand."""

import math
from typing import Any

import pytest
import torch
from lib.hand_made import Bench, serve
from lib.toy import Head, Normalized, NormalizedData, Notes, ProxyData, close, trainer
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedDF
from fl_lightning.callbacks.server.feddf import distillation_loss

X = ProxyData.inputs
D = torch.tensor([math.log(3), 0.0, 0.0, 0.0], dtype=torch.float64)
UPDATES, SAMPLES = torch.stack([3 * D, -D]), [1, 3]  # weighted by n they cancel, their mean is D
SLOPE = (-3 / 16, -1 / 32, 3 / 16, 1 / 32)  # see test_the_first_gradient


class Seen(FedDF):
    """Keeps the teachers' logits (T, n, C), a round an entry."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.logits: list[Tensor] = []

    def probabilities(self, logits: Tensor) -> Tensor:
        self.logits.append(logits)
        return super().probabilities(logits)


class Watched(Head):
    """Keeps the inputs of each forward pass and whether it was in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[tuple[bool, Tensor]] = Notes()

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append((self.training, x))
        return super().forward(x)


class InThrees(ProxyData):
    """The proxy set in batches of three points and one."""

    def proxy_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.inputs, self.labels), batch_size=3)


def fit(rule: FedDF, module: Head | None = None, updates: Tensor = UPDATES, **settings: Any) -> Bench:
    return serve(updates, rule, samples=SAMPLES, client=module or Head(), **settings)[0]


def first_gradient(**settings: Any) -> Tensor:
    """(4,) what the server's Adam gets in its first step."""
    seen: list[Tensor] = []

    def look(optimizer: Any, *_: Any) -> None:
        if isinstance(optimizer, torch.optim.Adam):
            seen.append(optimizer.param_groups[0]["params"][0].grad.clone())

    handle = register_optimizer_step_pre_hook(look)
    try:
        fit(FedDF(), **settings)
    finally:
        handle.remove()
    return seen[0]


def test_distillation_loss() -> None:
    """Teachers (2, 0, 0) and (0, 2, 0): mean (1, 1, 0), softmax t = (e, e, 1)/(2e + 1). Student s = (0.5, 0, -0.5).

    Σ t_c (log t_c - log softmax(s)_c), with log t = (1, 1, 0) - log(2e + 1) and log softmax(s) = s - log Σe^s.
    A student that agrees adds nothing to the batch's mean.
    """
    student = torch.tensor([[0.5, 0.0, -0.5]], dtype=torch.float64)
    logits = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 2.0, 0.0]]], dtype=torch.float64)
    target = FedDF().probabilities(logits)
    e, log_z, log_s = math.e, math.log(2 * math.e + 1), math.log(math.exp(0.5) + 1 + math.exp(-0.5))
    by_hand = (e * (0.5 - log_z + log_s) + e * (1 - log_z + log_s) + (0.5 - log_z + log_s)) / (2 * e + 1)
    assert by_hand == pytest.approx(0.0294342657, abs=1e-10)
    assert float(distillation_loss(student, target)) == pytest.approx(by_hand, abs=1e-12)
    both = distillation_loss(torch.cat([student, torch.tensor([[1.0, 1.0, 0.0]])]), target.expand(2, 3))
    assert float(both) == pytest.approx(by_hand / 2, abs=1e-12)


def test_a_teacher_that_is_certain_gives_no_nan() -> None:
    """KL((1, 0) ‖ (1/2, 1/2)) = log 2."""
    certain = distillation_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    assert float(certain) == pytest.approx(math.log(2), abs=1e-6)


def test_the_first_gradient() -> None:
    """The student is 0: probabilities 1/2. The mean of the teachers' logits is X Dᵀ, since they are linear.

    Row 0 of D is (log 3, 0): class 0 has the probabilities 3/4, 1/2, 3/4, 1/4 at (1, 0), (0, 1), (1, 1), (-1, 0.5).
    Row 0 of the gradient is (-(1, 0) - (1, 1) + (-1, 0.5)) / 4 / 4 = (-3/16, -1/32), row 1 its negative.
    """
    assert close(first_gradient(), SLOPE)


def test_some_epochs() -> None:
    """Adam with β = (0.5, 0.999), gradient (softmax(X Wᵀ) - softmax(X Dᵀ))ᵀ X / 4, from W = 0; anew in round 2."""
    w = torch.zeros(4, dtype=torch.float64)
    for _ in range(2):
        target = (X @ (w + D).reshape(2, 2).T).softmax(1)
        m = v = torch.zeros_like(w)
        for t in range(1, 6):
            g = (((X @ w.reshape(2, 2).T).softmax(1) - target).T @ X / 4).reshape(-1)
            m, v = 0.5 * m + 0.5 * g, 0.999 * v + 0.001 * g**2
            w = w - 0.1 * (m / (1 - 0.5**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    model = fit(FedDF(epochs=5, lr=0.1), rounds=2)
    assert close(model.params, w)
    assert model.params.grad is None


def test_teachers_that_agree_with_the_student_move_nothing() -> None:
    """One step only: where no gradient is, Adam blows rounding up to its learning rate in a few more."""
    same = torch.tensor([[0.5, -2.0, 1.0, 0.25]] * 2, dtype=torch.float64)
    assert close(first_gradient(updates=same), (0.0, 0.0, 0.0, 0.0), 1e-15)
    assert close(fit(FedDF(epochs=1), updates=same).params, same[0])


def test_teachers_pass_once_a_round_and_every_epoch_shuffles() -> None:
    """Two teachers on batches of 3 and 1, in evaluation mode; then batches of 3 and 1 points of all four an epoch."""
    module = Watched()
    fit(FedDF(epochs=8), module, data=InThrees)
    assert [(mode, len(x)) for mode, x in module.passes[:4]] == [(False, 3), (False, 1)] * 2
    students = module.passes[4:]
    assert [(mode, len(x)) for mode, x in students] == [(True, 3), (True, 1)] * 8
    epochs = [torch.cat([students[i][1], students[i + 1][1]]) for i in range(0, 16, 2)]
    orders = [tuple((row == X).all(1).int().argmax().item() for row in epoch) for epoch in epochs]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert len(set(orders)) > 1


class Unlabelled(ProxyData):
    def proxy_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.inputs), batch_size=4)


class Bare(ProxyData):
    def proxy_dataloader(self) -> DataLoader[Any]:
        return DataLoader(list(self.inputs), batch_size=4)  # type: ignore[arg-type]  # a list is a map-style dataset


@pytest.mark.parametrize("data", [Unlabelled, Bare])
def test_labels_are_not_used(data: Any) -> None:
    assert torch.equal(fit(FedDF(epochs=3), data=data).params, fit(FedDF(epochs=3)).params)


class Doubling(Head):
    """Its transfer hook doubles the proxy set's inputs."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch if batch[1].is_floating_point() else [2 * batch[0], batch[1]]


class Doubled(ProxyData):
    inputs = 2 * X


def test_transfer_hooks_act_once() -> None:
    ends = []
    for module, data in ((Doubling(), ProxyData), (Head(), Doubled), (Head(), ProxyData)):
        orchestrator = FederatedOrchestrator(module)
        trainer(FedDF(epochs=5, lr=0.1)).fit(orchestrator, datamodule=data(-UPDATES, samples=SAMPLES))
        ends.append(orchestrator.params)
    assert close(ends[0], ends[1])
    assert not close(ends[1], ends[2], 1e-3)


class Still(Normalized):
    """The clients' inputs move its buffers, and nothing its parameters: logits (z, -z) of the normalised input z."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight.data = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))  # type: ignore[no-any-return]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return 0 * self(batch[0]).sum()


def test_every_teacher_has_its_own_buffers() -> None:
    """Means and variances (0.2, 1.1) and (0.3, 2.7) by hand in NormalizedData; ε = 1e-5."""
    rule, orchestrator = Seen(epochs=3), FederatedOrchestrator(Still())
    trainer(rule).fit(orchestrator, datamodule=NormalizedData())
    x = torch.tensor([50.0, -50.0, 70.0, 0.0], dtype=torch.float64)
    z = torch.stack([(x - mean) / math.sqrt(var + 1e-5) for mean, var in ((0.2, 1.1), (0.3, 2.7))])
    assert close(rule.logits[0], torch.stack([z, -z], dim=2))


class Flat(Head):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, 0]


class Named(Head):
    def forward(self, x: Tensor) -> Any:
        return {"logits": super().forward(x)}


class Formless(Head):
    forward = LightningModule.forward


@pytest.mark.parametrize(("module", "came"), [(Flat, r"shape \(4,\)"), (Named, "dict"), (Formless, "NoneType")])
def test_refuses_outputs_that_are_no_logits(module: Any, came: str) -> None:
    message = rf"distillation needs logits \(B, C\) from {module.__name__}\.forward, got {came} for 4 inputs"
    with pytest.raises(ConfigurationError, match=message):
        fit(FedDF(), module())
