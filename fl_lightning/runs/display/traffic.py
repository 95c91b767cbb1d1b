"""TrafficMonitor: the bytes that a real federation would send."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning.engine.rules.callback import Monitor, rules_of
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.updates.cohort import Cohort
from fl_lightning.runs.catalogue import Metric


class TrafficMonitor(Monitor):
    """Counts the bytes that a real federation would send in each round, in the dtypes that the run uses.

    - ``bytes/down``: bytes that the server sends. Each selected client, unless it drops out before it receives the
      model, receives the trainable parameters, the buffers and frozen parameters that local training changes, and the
      tensors that rules broadcast (:attr:`FederatedCallback.broadcasts`).
    - ``bytes/up``: bytes that the clients send: the update, or what a rule has compressed it to
      (:attr:`LocalRun.upload_bytes`), the buffers and frozen parameters that the client changed, and the tensors that
      rules send (:meth:`LocalRun.send`). A client that is late, is left out, or drops out after it
      has received the model sends nothing.
    - ``bytes/total``: the sum of both since round 1.

    What stays with the clients (:meth:`FederatedCallback.local_part`, :meth:`FederatedCallback.keep`) is not sent. Two
    more things are not counted: frozen parameters and buffers that no client of the round changes, because clients have
    them from the start, and single numbers (n_k, losses, metrics). The monitor changes nothing.

    Attributes:
        total: bytes sent since round 1, down and up.
    """

    metrics = (
        Metric(
            "bytes/down",
            "Bytes to the clients",
            "Bytes that the server would send in a round: the model, and the tensors that rules broadcast.",
            formula="K · (P + B + broadcasts)",
            panel="bytes of a round",
            axis="bytes",
        ),
        Metric(
            "bytes/up",
            "Bytes from the clients",
            "Bytes that the clients of a round would send: updates, buffers, and the tensors that rules send.",
            formula="P + B_k + what rules send, summed over the clients whose update arrives.",
            panel="bytes of a round",
            axis="bytes",
        ),
        Metric(
            "bytes/total",
            "Bytes in total",
            "Bytes sent in both directions since round 1.",
            panel="bytes since round 1",
            axis="bytes",
        ),
    )

    streams = True

    total = 0

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and trainer.current_epoch == 0:
            self.total = 0  # a checkpoint, if there is one, is loaded later

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.total = state_dict["total"]

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        broadcast = []
        for rule in rules_of(trainer):
            broadcast += [rule.state[name] for name in rule.broadcasts if name in rule.state]
        self._to_each = _size_of_model(cast(Server, pl_module)) + _size(broadcast)
        self._up = 0

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        known = orchestrator.read_buffers()
        moved = set[int]()  # buffers that a client of the round has changed, by their numbers
        for result in cohort.results:
            changed = [n for n, buffer in enumerate(result.buffers) if buffer is not known[n]]
            update = _size_of_model(orchestrator) if result.upload_bytes is None else result.upload_bytes
            self._up += update + _size(result.buffers[n] for n in changed) + _size(result.vectors.values())
            moved.update(changed)
        self._to_each += _size(known[n] for n in moved)
        return cohort

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx + 1 < int(trainer.num_training_batches):
            return
        # Here, and not in on_round_end, because a round without an update has no such hook.
        orchestrator = cast(Server, pl_module)
        turnout = orchestrator.data.turnout(orchestrator.rounds_done)
        down = self._to_each * (turnout.counts["selected"] - len(turnout.absent))
        self.total += down + self._up
        for name, value in (("down", down), ("up", self._up), ("total", self.total)):
            orchestrator.log_round(f"bytes/{name}", float(value))


def _size_of_model(orchestrator: Server) -> int:
    """Return the bytes of the parameters that do not stay with the clients."""
    params = orchestrator.params
    return (len(params) - len(orchestrator.flat.local)) * params.element_size()


def _size(tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes of tensors; a sparse tensor counts as if it were dense."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
