"""HessianMonitor: curvature of the global model's training loss."""

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, Metric, Monitor, Server, check_at_least, is_due, save_arrays
from fl_lightning.callbacks.monitors.curvature import check_module, top_eigenpairs, training_loss
from fl_lightning.later import later

NEAR, SCALE = 0.01, 0.9  # of the measures that stand for FedLAW's Fig. 4
# Of the curves of that figure: the histogram's bins, the middle one of which is as wide as NEAR says; the factors of
# all parameters; the steps along the eigenvector.
BINS, FACTORS, STEPS = np.linspace(-0.51, 0.51, 52), (0.5, 1.5), (-1.0, 1.0)


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
    memory for 30 models. The monitor changes nothing.

    With ``points``, each measurement writes ``arrays/profile_<round>.npz`` with the three curves of Fig. 4:
    ``train_by_factor`` and ``val_by_factor``, the loss of training and of validation examples at the parameters times
    each of the ``factors`` from 0.5 to 1.5; ``train_by_step`` and ``val_by_step``, these losses at the parameters plus
    each of the ``steps`` from -1 to 1 along the eigenvector of the largest eigenvalue, of length 1; and ``share``, the
    share of the parameters in the bin around each of the ``values``, 0.02 wide. ``profile/loss`` is the loss of the
    validation examples, and ``profile/loss_rescaled`` that loss with all parameters multiplied by 0.9.

    Args:
        every: number of rounds from one measurement to the next; the last round that ``trainer.max_epochs`` allows is
            measured, too.
        count: number of eigenvalues, at least 1; the ratio needs 5.
        examples: number of examples in the sample; the whole training set if it has fewer.
        points: number of points of each curve of a loss, one evaluation of ``examples`` examples each; 0 for no curves.

    Raises:
        ConfigurationError: ``points`` is less than 0, or another argument less than 1; the module optimizes manually.
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
        Metric(
            "profile/loss",
            "Loss of the profile",
            "Loss of the global model over a sample of the validation examples.",
            panel="loss if rescaled",
        ),
        Metric(
            "profile/loss_rescaled",
            "Loss of the profile if rescaled",
            f"Loss over the same examples if all parameters are multiplied by {SCALE} (FedLAW, Fig. 4).",
            panel="loss if rescaled",
        ),
    )

    needs_one_machine = "measures the loss of clients' training examples at the server"
    streams = True

    @later(points=0)
    def __init__(self, every: int = 10, count: int = 5, examples: int = 512, points: int = 0) -> None:
        check_at_least(1, every=every, count=count, examples=examples)
        check_at_least(0, points=points)
        self.every, self.count, self.examples, self.points = every, count, examples, points

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
            eigenvalues, eigenvectors = top_eigenpairs(loss.hessian_product, start, self.count)
            values = eigenvalues.tolist()
            rise = loss.at(SCALE * params) - loss.at(params)
        orchestrator.log_round("parameters/near_zero", float((params.abs() < NEAR).double().mean()))
        orchestrator.log_round("parameters/loss_rescaled", rise)
        orchestrator.log_round("parameters/norm", float(torch.linalg.vector_norm(params, dtype=torch.float64)))
        for number, value in enumerate(values, 1):
            orchestrator.log_round(f"hessian/eigenvalue_{number}", value)
        if len(values) >= 5 and values[4]:
            orchestrator.log_round("hessian/ratio_1_5", values[0] / values[4])
        if self.points:
            self._save_profile(orchestrator, cohort.round, eigenvectors[0])

    def _save_profile(self, orchestrator: Server, round: int, sharpest: Tensor) -> None:
        """Save and log the curves of Fig. 4, see the class; ``sharpest`` (P,) is the eigenvector."""
        params = orchestrator.params
        factors = np.linspace(*FACTORS, self.points)
        steps = np.linspace(*STEPS, self.points)
        counts, _ = np.histogram(params.double().cpu().numpy(), BINS)
        arrays = {"factors": factors, "steps": steps, "values": (BINS[1:] + BINS[:-1]) / 2}
        arrays["share"] = counts / len(params)
        for name, validation in (("train", False), ("val", True)):
            with training_loss(orchestrator, self.examples, validation) as loss:
                arrays[f"{name}_by_factor"] = np.array([loss.at(factor * params) for factor in factors.tolist()])
                arrays[f"{name}_by_step"] = np.array([loss.at(params + step * sharpest) for step in steps.tolist()])
                if validation:
                    orchestrator.log_round("profile/loss", loss.at(params))
                    orchestrator.log_round("profile/loss_rescaled", loss.at(SCALE * params))
        save_arrays(orchestrator, f"profile_{round}", **arrays)
