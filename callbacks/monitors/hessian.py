"""HessianMonitor: curvature of the global model's training loss."""

import torch
from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from fl_lightning import Cohort, Metric, Monitor, Server, check_at_least, is_due
from fl_lightning.callbacks.monitors.curvature import check_module, top_eigenvalues, training_loss

NEAR, SCALE = 0.01, 0.9  # of the measures that stand for FedLAW's Fig. 4


class HessianMonitor(Monitor):
    """Logs the largest eigenvalues of the Hessian of the global model's training loss (Li et al., 2023, Fig. 10).

    ``hessian/eigenvalue_1``, … are the eigenvalues of largest magnitude, with their signs; ``hessian/ratio_1_5`` is the
    first divided by the fifth. Both measure sharpness: small is flat. ``parameters/norm`` is the Euclidean norm of the
    model's trainable parameters, the figure's third measure. Two measures stand for the paper's Fig. 4:
    ``parameters/near_zero`` is the share of the parameters between -0.01 and 0.01, and ``parameters/loss_rescaled`` by
    how much the loss rises if all are multiplied by 0.9. The paper (FedLAW) does not say which data it uses. Here
    the loss is that of the module's ``training_step`` for the new global model in evaluation mode (dropout off,
    BatchNorm with its running statistics), without autocast, over a sample of all clients' training examples that is
    the same in every round: see :func:`fl_lightning.callbacks.monitors.curvature.training_loss`. One measurement takes
    some 20 to 60 products of the Hessian with a vector, each about as long as two local epochs over the sample, and
    memory for 20 models. The monitor changes nothing.

    Args:
        every: number of rounds from one measurement to the next; the last round that ``trainer.max_epochs`` allows is
            measured, too.
        count: number of eigenvalues, at least 1; the ratio needs 5.
        examples: number of examples in the sample; the whole training set if it has fewer.

    Raises:
        ConfigurationError: an argument is less than 1; the module optimizes manually.
    """

    metrics = (
        Metric(
            "hessian/eigenvalue_1",
            "Largest eigenvalue",
            "Curvature of the loss in its sharpest direction: small at a flat minimum.",
        ),
        Metric(
            "hessian/eigenvalue_<i>",
            "eigenvalue",
            formula="The `count` eigenvalues of largest magnitude, with their signs (FedLAW, Fig. 10).",
            panel="largest eigenvalues of the Hessian",
        ),
        Metric(
            "hessian/ratio_1_5",
            "Ratio of the eigenvalues 1 and 5",
            "Near 1 if the five sharpest directions have about the same curvature.",
            formula="λ₁ / λ₅ (FedLAW, Fig. 10).",
            panel="largest over fifth",
        ),
        Metric(
            "parameters/norm",
            "Norm of the parameters",
            "Euclidean norm of the global model's trainable parameters.",
            panel="norm of the parameters",
        ),
        Metric(
            "parameters/near_zero",
            "Parameters near zero",
            f"Share of the global model's trainable parameters between −{NEAR} and {NEAR} (FedLAW, Fig. 4).",
            percent=True,
            panel="parameters near zero",
        ),
        Metric(
            "parameters/loss_rescaled",
            "Rise of the loss if rescaled",
            f"By how much the training loss rises if all parameters are multiplied by {SCALE} (FedLAW, Fig. 4).",
            panel="rise of the loss if rescaled",
        ),
    )

    needs_one_machine = "measures the loss of clients' training examples at the server"
    streams = True

    def __init__(self, every: int = 10, count: int = 5, examples: int = 512) -> None:
        check_at_least(1, every=every, count=count, examples=examples)
        self.every, self.count, self.examples = every, count, examples

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_module("HessianMonitor", pl_module)

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if not is_due(orchestrator, self.every):
            return
        draw, params = orchestrator.generator("hessian"), orchestrator.params
        start = torch.randn(len(params), generator=draw, dtype=params.dtype).to(params)
        with training_loss(orchestrator, self.examples) as loss:
            values = top_eigenvalues(loss.hessian_product, start, self.count).tolist()
            rise = loss.at(SCALE * params) - loss.at(params)
        orchestrator.log_round("parameters/near_zero", float((params.abs() < NEAR).double().mean()))
        orchestrator.log_round("parameters/loss_rescaled", rise)
        orchestrator.log_round("parameters/norm", float(torch.linalg.vector_norm(params, dtype=torch.float64)))
        for number, value in enumerate(values, 1):
            orchestrator.log_round(f"hessian/eigenvalue_{number}", value)
        if len(values) >= 5 and values[4]:
            orchestrator.log_round("hessian/ratio_1_5", values[0] / values[4])
