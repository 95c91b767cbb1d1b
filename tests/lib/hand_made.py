"""Rules on hand-made cohorts: the server's part of a round is that of a run, but no client trains, and no fit runs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loggers import Logger
from torch import Tensor

from fl_lightning import ClientResult, Cohort, FederatedDataModule, Monitor, Server
from fl_lightning.callbacks.server.client_losses import LOSS, ClientLosses
from fl_lightning.engine.aggregation import aggregate
from fl_lightning.engine.module.params import FlatParameters
from fl_lightning.engine.rules.callback import federated
from fl_lightning.engine.rules.hooks import Hooks
from lib.toy import Capture, GivenData, Head, Linear, ProxyData, trainer


class Watch(Capture, Monitor):
    """A capture that no rule takes for another rule."""


class Row(Logger):
    """Adds what is logged to a dict."""

    name = version = None

    def __init__(self, row: dict[str, float]) -> None:
        super().__init__()
        self.row = row

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.row.update(metrics)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


class Bench(Server):
    """A global model that takes the update of a hand-made cohort in each round, as SGD(1.0) on the server would.

    Attributes:
        logged: the last value of each metric, those of single clients included.
    """

    max_update_norm = None

    def __init__(
        self, client: LightningModule, data: FederatedDataModule, *callbacks: Callback, seed: int = 0, **settings: Any
    ) -> None:
        super().__init__(client, seed)
        self.logged = dict[str, float]()
        self.engine = trainer(*callbacks, **{"logger": Row(self.logged), **settings})  # shown to rules; it fits nothing
        self.engine.datamodule = data  # type: ignore[attr-defined]  # as in a fit
        self.trainer, self.flat = self.engine, FlatParameters(client)
        self.hooks = Hooks(self, federated(self.engine))
        for callback in self.hooks.callbacks:
            callback.setup(self.engine, self, "fit")
            callback.on_train_start(self.engine, self)

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        return torch.optim.SGD(self.flat.parameters, lr=1.0)

    def log_round(self, name: str, value: float, prog_bar: bool = False, logger: bool | None = None) -> None:
        self.logged[name] = value

    def take(self, cohort: Cohort) -> None:
        """One round."""
        aggregate(self, self.hooks, cohort)
        self.rounds_done += 1


def serve(
    updates: Any,
    *rules: Callback,
    samples: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    losses: Sequence[float] | None = None,
    rounds: int = 1,
    cohorts: Sequence[Sequence[int]] | None = None,
    start: Sequence[float] | None = None,
    client: LightningModule | None = None,
    data: Callable[..., GivenData] | None = None,
    **settings: Any,
) -> tuple[Bench, Capture]:
    """Let rules act on the same updates, round after round.

    Args:
        updates: (N, P), what client k sends whenever it takes part.
        rules: rules and monitors.
        samples: n_k; 1 each by default. A client with 0 takes no part.
        steps: τ_k; 1 each by default.
        losses: l_k; 0 each by default.
        rounds: number of rounds, if ``cohorts`` does not say.
        cohorts: the clients of each round; by default all that have data.
        start: (P,) the global model before the first round; by default that of ``client``.
        client: the module that holds the global model, toy.Linear by default.
        data: makes the data module, by default toy.ProxyData for a toy.Head, and toy.GivenData for other modules.
        settings: of the Trainer that rules see, and the seed.

    Returns:
        The server after these rounds, and what a last callback saw.
    """
    updates = torch.as_tensor(updates, dtype=torch.float64)
    count = len(updates)
    samples, steps, losses = samples or [1] * count, steps or [1] * count, losses or [0.0] * count
    cohorts = cohorts or [[k for k in range(count) if samples[k]]] * rounds
    given = (data or (ProxyData if isinstance(client, Head) else GivenData))(updates, samples=samples)
    client, capture = client or Linear(updates.shape[1]), Watch()
    server = Bench(client, given, *rules, capture, **{"rounds": len(cohorts), **settings})
    if start is not None:
        server.params.copy_(torch.tensor(start, dtype=torch.float64))
    asked = any(isinstance(rule, ClientLosses) for rule in rules)
    for round, clients in enumerate(cohorts, 1):
        buffers = list(server.read_buffers())
        results = [
            ClientResult(
                *(k, samples[k], steps[k], losses[k], float(steps[k]), buffers),
                learning_rate=1.0,
                vectors={LOSS: torch.tensor(losses[k])} if asked else {},
            )
            for k in clients
        ]
        server.take(Cohort.collect(round, server.params.clone(), updates[list(clients)], results))
    return server, capture


def apply(updates: Any, *rules: Callback, **settings: Any) -> tuple[Tensor, Capture]:
    """The new global model (P,), by default from zero, and what a last callback saw; see :func:`serve`."""
    server, capture = serve(updates, *rules, **settings)
    return server.params.clone(), capture
