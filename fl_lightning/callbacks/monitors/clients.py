"""ClientMonitor: each client's loss, accuracy and update in a round."""

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, LocalRun, Metric, Monitor, Server, log_each, norms, share_removed

TOP1 = "clients/top1"


def top1(outputs: Any) -> Tensor | None:
    """Share of a batch's examples that are classified correctly, a scalar in [0, 1].

    >>> import torch
    >>> from fl_lightning.callbacks.monitors.clients import top1
    >>> logits = torch.tensor([[2.0, 1.0], [0.0, 3.0]])  # the largest are those of classes 0 and 1
    >>> top1({"logits": logits, "targets": torch.tensor([0, 0])})
    tensor(0.5000)

    Args:
        outputs: outputs of a training step: a dict with "logits" (B, C, …), C > 1, and "targets" (B, …), class indices.

    Returns:
        The share; None for any other outputs.
    """
    logits, targets = (outputs.get("logits"), outputs.get("targets")) if isinstance(outputs, dict) else (None, None)
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor) or targets.is_floating_point():
        return None
    if logits.ndim < 2 or logits.shape[1] < 2 or logits.shape[:1] + logits.shape[2:] != targets.shape:
        return None
    return (logits.argmax(1) == targets).float().mean()


class ClientMonitor(Monitor):
    """Logs each client's loss, accuracy and update norm, and how much of its update the rules changed.

    Metrics of single clients go to the loggers alone. Each takes a column of ``metrics.csv``: with thousands of
    clients, leave this monitor out.

    - ``clients/loss/<k>``: mean training loss over the local steps, including what client rules change in the loss.
    - ``clients/top1/<k>``: mean training accuracy over the batches of the local steps, computed for each batch before
      its step. Needs a ``training_step`` that returns a dict with "logits" (B, C) and "targets" (B,).
    - ``clients/update_norm/<k>``: ‖Δ_k‖, norm of the update that the client sent.
    - ``clients/removed/<k>``: ‖Δ_k - Δ'_k‖ / ‖Δ_k‖, share of the update that the rules changed, where Δ'_k is the
      corrected update; not logged for a zero update.

    Metrics of the cohort:

    - ``train/top1``: mean of the clients' accuracies, weighted by n_k. If the module logs ``train/top1`` itself, the
      module's value stays.
    - ``updates/norm_mean``, ``updates/norm_max``: mean and maximum of ‖Δ_k‖.
    - ``updates/drift``: mean of ‖Δ_k - ū‖, where ū = Σ λ_k Δ'_k is the sum of the corrected updates with the cohort's
      final weights λ_k.

    A module that optimizes manually (``automatic_optimization = False``) is refused. The monitor changes nothing.
    """

    metrics = (
        Metric(
            "clients/top1/<k>",
            "training accuracy",
            formula="Mean training accuracy over client k's local batches, each before its step.",
            percent=True,
            panel="training accuracy of clients",
        ),
        Metric(
            "clients/loss/<k>",
            "training loss",
            formula="Mean training loss over client k's local steps, as the client rules have changed it.",
            panel="training loss of clients",
        ),
        Metric("clients/update_norm/<k>", "update norm", formula="‖Δ_k‖", panel="size of clients' updates"),
        Metric(
            "clients/removed/<k>",
            "removed",
            formula="‖Δ_k − Δ'_k‖ / ‖Δ_k‖; not logged for a zero update.",
            panel="removed from clients' updates",
        ),
        Metric(
            "train/top1",
            "Training accuracy",
            "Mean over the clients' local steps, weighted by their examples.",
            percent=True,
            better="higher",
            panel="local training accuracy",
        ),
        Metric(
            "updates/norm_mean",
            "Mean length of an update",
            "How far a client's training moves the model; mean over the clients.",
            formula="‖Δ_k‖",
            panel="size and drift of updates",
        ),
        Metric(
            "updates/norm_max",
            "Largest length of an update",
            "The largest distance that one client's training moves the model.",
            formula="‖Δ_k‖",
            panel="size and drift of updates",
        ),
        Metric(
            "updates/drift",
            "Client drift",
            "Mean distance of the clients' updates from the combined update.",
            formula="‖Δ_k − ū‖",
            panel="size and drift of updates",
        ),
    )

    stacks = True

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        if (accuracy := top1(outputs)) is not None:
            run.log(TOP1, accuracy)  # ignored in passes that a rule makes at other points than the parameters
        return loss

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        if TOP1 not in cohort.metrics:
            return cohort
        others = {name: value for name, value in cohort.metrics.items() if name != TOP1}
        return cohort.replace(metrics={"train/top1": cohort.metrics[TOP1]} | others)  # a module's own train/top1 stays

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        lengths = cohort.gram.diagonal().sqrt()
        apart = torch.eye(len(lengths), dtype=lengths.dtype) - cohort.weights @ cohort.mixing
        orchestrator.log_round("updates/norm_mean", float(lengths.mean()))
        orchestrator.log_round("updates/norm_max", float(lengths.max()))
        orchestrator.log_round("updates/drift", float(norms(cohort.gram, apart).mean()))
        for name, values in (
            ("loss", cohort.losses.tolist()),
            ("top1", [result.metrics.get(TOP1, math.nan) for result in cohort.results]),
            ("update_norm", lengths.tolist()),
            ("removed", share_removed(cohort.gram, cohort.mixing).tolist()),
        ):
            known = {k: value for k, value in zip(cohort.clients, values, strict=True) if not math.isnan(value)}
            if known:
                log_each(orchestrator, f"clients/{name}", known, known.values())
