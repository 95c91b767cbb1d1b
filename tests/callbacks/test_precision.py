"""Every rule under every precision: clients compute in the precision asked for, the server in float32 or more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.rules import CLIENT_RULES, SERVER_RULES
from lib.tiny_images import client, fit
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, LocalRun, Server
from fl_lightning.engine.rules.callback import federated, overrides

RULES = SERVER_RULES | CLIENT_RULES
FORWARD = {"32-true": torch.float32, "64-true": torch.float64, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
FAST = ("FedAvg", "CoordinateMedian", "FedLAW", "FedDF", "Scaffold", "FedSAM")


class Watch(FederatedCallback):
    """Remembers the dtypes in which the clients compute, and those on the server."""

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self.forward: set[torch.dtype] = set()
        self.server: dict[str, torch.dtype] = {}
        last = [part for part in pl_module.client.modules() if isinstance(part, nn.Linear)][-1]
        last.register_forward_hook(lambda *arguments: self.forward.add(arguments[-1].dtype))

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.server |= {"a client's parameters": run.params.dtype, "a client's gradients": run.grads.dtype}

    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        parts = {name: getattr(cohort, name) for name in ("deltas", "weights", "mixing", "gram", "anchor")}
        self.server |= {name: tensor.dtype for name, tensor in parts.items()} | {"update": update.dtype}
        self._see("buffer", cohort.buffers)
        return update

    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        self.server |= {"params": orchestrator.params.dtype}
        for rule in federated(orchestrator.trainer):
            self._see(type(rule).__name__, list(rule.state.values()))

    def _see(self, name: str, tensors: Sequence[Tensor]) -> None:
        self.server |= {f"{name} {i}": each.dtype for i, each in enumerate(tensors) if each.is_floating_point()}


def precise(precision: str) -> dict[str, Any]:
    """Settings of a Trainer on the CPU, where Lightning takes a loss scaler from those who bring one."""
    if precision != "16-mixed":
        return {"precision": precision}
    scaler = torch.amp.GradScaler("cpu", init_scale=256)  # type: ignore[attr-defined]  # torch does not export it so
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}


@pytest.mark.parametrize("precision", FORWARD)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in RULES])
def test_clients_precision(name: str, precision: str, tmp_path: Path) -> None:
    """Rules that evaluate a batch's gradient again are refused under a loss scale, by name."""
    rule, watch = RULES[name](), Watch()
    if precision == "16-mixed" and overrides(rule, "closure"):
        with pytest.raises(ConfigurationError, match=rf"{type(rule).__name__}.* needs gradients without a loss scale"):
            fit(tmp_path, rule, **precise(precision))
        return
    orchestrator = fit(tmp_path, rule, watch, **precise(precision))
    start = torch.cat([parameter.detach().flatten() for parameter in client().parameters()])
    assert orchestrator.params.isfinite().all()
    assert not torch.equal(orchestrator.params.to(start), start)
    assert FORWARD[precision] in watch.forward
    own = torch.float64 if precision == "64-true" else torch.float32
    assert watch.server["deltas"] == watch.server["update"] == watch.server["params"] == own
    assert {watch.server[small] for small in ("weights", "mixing", "gram")} == {torch.float64}
    assert not {part: dtype for part, dtype in watch.server.items() if dtype not in (own, torch.float64)}
