"""compile_clients: groups of clients end where untraced ones end, but for rounding; and what is not compiled."""

import warnings
from typing import Any

import pytest
import torch
from rules import TinyClassifier, TinyData
from torch import Tensor
from torch.func import grad_and_value, vmap
from toy import close, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedProx
from fl_lightning.engine import tracing
from fl_lightning.engine.tracing import Replayed

CPU = torch.device("cpu")


def gradients(weights: Tensor, buffer: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """Gradients and losses of several clients, with dropout and a buffer that changes in place."""

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(torch.nn.functional.dropout(torch.tanh(x @ w), 0.5), y)

    buffer.mul_(0.9).add_(x.mean(1), alpha=0.1)
    return list(vmap(grad_and_value(loss), randomness="different")(weights, x, y))


@pytest.mark.slow
def test_a_compiled_step_gives_what_the_step_gives() -> None:
    """The same random numbers, the same changes in place; a second form is compiled for itself."""
    replayed = Replayed(gradients, CPU, compiled=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", ".*(TF32|deprecat).*")
        for clients in (3, 5):
            inputs = [torch.randn(clients, 5, 4), torch.zeros(clients, 5), torch.randn(clients, 6, 5)]
            inputs.append(torch.randint(4, (clients, 6)))
            for seed in range(3):
                results = []
                for call in (replayed, gradients):
                    copies = [each.clone() for each in inputs]
                    torch.manual_seed(seed)
                    results.append([*call(*copies), *copies])
                assert all(close(one.double(), other, 1e-5) for one, other in zip(*results, strict=True))


@pytest.mark.slow
def test_compiled_clients_end_where_others_end() -> None:
    """A second run, whose first steps are compiled at once, too, ends at the same bits."""
    ends = []
    for compiled in (False, True, True):
        orchestrator = FederatedOrchestrator(
            TinyClassifier(), clients_at_once=6, compile_clients=compiled, on_bad_update="raise"
        )
        trainer(FedProx(0.1), rounds=3).fit(orchestrator, datamodule=TinyData(batch_size=4))
        ends.append(orchestrator.params.clone())
    assert close(ends[1], ends[0])
    assert torch.equal(ends[1], ends[2])


@pytest.mark.parametrize("fails", [True, False])
def test_what_the_compiler_gets_wrong_is_replayed(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a compiler that fails nor one whose results differ changes what a step gives: one line says so."""

    def compile(module: Any, **_: Any) -> Any:
        if fails:
            raise RuntimeError("no C++ compiler\nfound")
        return lambda *inputs: [each + 0.1 for each in module(*inputs)]

    monkeypatch.setattr(tracing.torch, "compile", compile)  # type: ignore[attr-defined]
    replayed = Replayed(lambda x: [x * 2], CPU, compiled=True)
    reason = "no C\\+\\+ compiler found" if fails else "its results differ"
    with pytest.warns(UserWarning, match=f"compile_clients: a step runs without compilation, since {reason}"):
        assert torch.equal(replayed(torch.ones(2))[0], torch.full((2,), 2.0))
    assert torch.equal(replayed(torch.ones(2))[0], torch.full((2,), 2.0))


def test_compilation_needs_clients_at_once() -> None:
    with pytest.raises(ConfigurationError, match="compile_clients compiles clients that train at once"):
        FederatedOrchestrator(TinyClassifier(), compile_clients=True)
