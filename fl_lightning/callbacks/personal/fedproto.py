"""FedProto: clients that share what their classes look like, and no model."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, LocalRun, Server, check_not_negative
from fl_lightning.callbacks.client.classes import class_counts, logits_and_targets
from fl_lightning.callbacks.client.features import FeatureRule, forward_inputs, weights_at


class FedProto(FeatureRule):
    """Keeps the whole model on each client, and shares the mean features of each class (Tan et al., 2022, Algorithm 1).

    A client sends its prototypes, the means over its examples of each class after training; the server averages them by
    numbers of examples (uniformly in the released code). The loss gains λ times the mean squared difference of an
    example's features and its class's global prototype, as in the released code: over all examples of the batch, of
    which those whose class has no prototype yet count 0. The client's classifier serves it; the paper predicts the
    class of the nearest prototype.

    Args:
        lam: λ >= 0, weight of the term.
        layer: name of the layer whose output the features are; by default the features are the classifier's input, see
            :class:`FeatureRule`.

    Raises:
        ConfigurationError: ``lam`` is negative; the data module does not know its ``class_counts``; the module has no
            such layer, or ``training_step`` returns no dict with "logits" and "targets".
    """

    streams = True
    needs_each_client = "takes the prototypes of each client"
    broadcasts = ("prototypes",)

    def __init__(self, lam: float = 1.0, layer: str | None = None) -> None:
        check_not_negative(lam=lam)
        super().__init__(layer)
        self.lam = lam

    @override
    def local_part(self, module: LightningModule) -> Iterable[str]:
        return [name for name, _ in (*module.named_parameters(), *module.named_buffers())]

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._num_classes = class_counts(self, trainer.datamodule).shape[1]  # type: ignore[attr-defined]

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        features, (_, targets) = self.features(run), logits_and_targets(self, run, outputs)
        unknown = features.new_full((self._num_classes, features.shape[1]), torch.nan)
        wanted = self.recall("prototypes", unknown)[targets]
        known = ~wanted.isnan().any(1, keepdim=True)
        apart = torch.where(known, features - wanted, 0.0).square().mean(1).sum()
        return loss + self.lam * apart / len(targets)

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        weights, sums, counts = weights_at(orchestrator)(run.params), None, run.params.new_zeros(self._num_classes)
        for batch in map(orchestrator.prepare_batch, run.batches(orchestrator.generator("fedproto", run.client))):
            features = self.features_at(run, weights, forward_inputs(run.module, batch))
            if sums is None:
                sums = features.new_zeros(self._num_classes, features.shape[1])
            sums.index_add_(0, batch[1], features)
            counts += batch[1].bincount(minlength=self._num_classes)
        assert sums is not None
        run.send("prototypes", sums)
        run.send("counts", counts)
        super().on_client_end(orchestrator, run)

    @override
    def sends(self, orchestrator: Server) -> Mapping[str, Tensor]:
        counts = orchestrator.params.new_zeros(self._num_classes)
        return {"prototypes": self.recall("prototypes", counts[:, None][:, :0]), "counts": counts}

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        sums = torch.stack([result.vectors["prototypes"] for result in cohort.results]).sum(0)
        counts = torch.stack([result.vectors["counts"] for result in cohort.results]).sum(0)[:, None]
        before = self.recall("prototypes", torch.full_like(sums, torch.nan))
        self.state["prototypes"] = torch.where(counts > 0, sums / counts.clamp(min=1), before)
        return super().aggregate(orchestrator, cohort)
