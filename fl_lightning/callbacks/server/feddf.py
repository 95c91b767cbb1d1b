"""FedDF: ensemble distillation into the averaged model."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from typing_extensions import override

from fl_lightning import Buffers, Cohort, ConfigurationError, FederatedCallback, Server, evaluating
from fl_lightning.callbacks.server.server_ft import check_schedule, fine_tune

Model = tuple[Tensor, Buffers]  # parameters (P,) and buffers


def distillation_loss(student_logits: Tensor, teacher_probabilities: Tensor) -> Tensor:
    """Mean of KL(teachers ‖ softmax(student)) over a batch, a scalar >= 0.

    The teacher is sure of class 0, to which the student gives the probability 1/2; the loss is ln 2:

    >>> import torch
    >>> from fl_lightning.callbacks.server.feddf import distillation_loss
    >>> distillation_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    tensor(0.6931)

    Args:
        student_logits: (B, C) the student's logits of B examples for C classes.
        teacher_probabilities: (B, C) the teachers' probabilities of these classes.
    """
    student = student_logits.log_softmax(1, dtype=teacher_probabilities.dtype)
    return F.kl_div(student, teacher_probabilities, reduction="batchmean")


class FedDF(FederatedCallback):
    """Distils the clients' models into the new global model on the proxy set (Lin et al., 2020, Algorithm 1).

    The student is the new global model in training mode. The teachers are the models that the clients sent, each with
    its own buffers, in evaluation mode. The target is the softmax of the teachers' mean logits, as in FedLAW's released
    code. Training follows the comparison in FedLAW (Li et al., 2023): no temperature, and Adam with betas (0.5, 0.999)
    for a fixed number of epochs. Lin et al. anneal the learning rate and stop early on a validation set. The teachers
    see the proxy set once a round, before the first epoch. The student's buffers stay the average by n_k; published
    code lets the student's BatchNorm statistics move.

    A proxy batch is the inputs, or begins with the inputs; the module's ``forward`` turns the inputs alone into logits
    (B, C). Labels are not used.

    Args:
        epochs: passes over the proxy set per round; 100 in FedLAW (Appendix D.6).
        lr: learning rate of Adam. FedLAW states none: the default is ours.

    Raises:
        ConfigurationError: an argument is out of range; in the first round, the module's output is not (B, C).
    """

    needs_proxy = True
    settles = frozenset()

    def __init__(self, epochs: int = 100, lr: float = 0.001) -> None:
        check_schedule(epochs, lr)
        self.epochs, self.lr = epochs, lr

    def teachers(self, orchestrator: Server, cohort: Cohort) -> Iterator[Model]:
        """Yield the models whose outputs the student learns: parameters (P,) and buffers."""
        for delta, result in zip(cohort.rows(), cohort.results, strict=True):
            yield cohort.anchor + delta, result.buffers

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the student's targets (n, C), given the logits (T, n, C) of T teachers."""
        return logits.mean(0).softmax(1)

    @override
    def refine(self, orchestrator: Server, cohort: Cohort) -> None:
        module = orchestrator.client
        precision = orchestrator.trainer.precision_plugin
        with orchestrator.server_side("distillation"):
            batches = [orchestrator.prepare_batch(batch) for batch in orchestrator.data.proxy_dataloader() or ()]
            batches = [batch if isinstance(batch, Tensor) else batch[0] for batch in batches]
            logits = []
            with evaluating(module), torch.no_grad():
                for params, buffers in self.teachers(orchestrator, cohort):
                    with orchestrator.at(params, buffers), precision.val_step_context():
                        logits.append(torch.cat([class_scores(module, inputs) for inputs in batches]))
            inputs, targets = torch.cat(batches), self.probabilities(torch.stack(logits).to(orchestrator.params.dtype))

            def gradient(rows: Tensor) -> Tensor:
                return orchestrator.differentiate(lambda: distillation_loss(module(inputs[rows]), targets[rows]))[1]

            def shuffled() -> tuple[Tensor, ...]:
                return torch.split(torch.randperm(len(inputs)), len(batches[0]))

            fine_tune(orchestrator, self.epochs, self.lr, shuffled, gradient)


def class_scores(module: LightningModule, inputs: Tensor) -> Tensor:
    """Compute the logits (B, C) of B inputs.

    Raises:
        ConfigurationError: the module has no ``forward``, or ``forward`` returns anything else.
    """
    logits = module(inputs) if is_overridden("forward", module, LightningModule) else None
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(inputs):
        came = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigurationError(
            f"distillation needs logits (B, C) from {type(module).__name__}.forward, got {came} for {len(inputs)} "
            "inputs"
        )
    return logits
