"""ClientMonitor: what each client did in a round."""

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, LocalRun, Monitor, Server, log_each, norms, share_removed

TOP1 = "clients/top1"


def top1(outputs: Any) -> Tensor | None:
    """Share of a batch that is classified right, a scalar in [0, 1].

    Args:
        outputs: of a training step: a dict with "logits" (B, C, …), C > 1, and "targets" (B, …), class indices.

    Returns:
        None for any other outputs.
    """
    logits, targets = (outputs.get("logits"), outputs.get("targets")) if isinstance(outputs, dict) else (None, None)
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor) or targets.is_floating_point():
        return None
    if logits.ndim < 2 or logits.shape[1] < 2 or logits.shape[:1] + logits.shape[2:] != targets.shape:
        return None
    return (logits.argmax(1) == targets).float().mean()


class ClientMonitor(Monitor):
    """Logs what each client did in a round, under any rule and without changing it.

    By client, for the loggers alone: one column each in ``metrics.csv``, so not for thousands of clients.

    - ``clients/loss/<k>``: mean training loss over the local steps, as the client rules have made it.
    - ``clients/top1/<k>``: mean training accuracy of the local steps' batches, each before its step. It needs a
      ``training_step`` that returns a dict with "logits" (B, C) and "targets" (B,).
    - ``clients/update_norm/<k>``: ‖Δ_k‖ of the update as it came.
    - ``clients/removed/<k>``: ‖Δ_k - Δ'_k‖ / ‖Δ_k‖, how much of it the rules changed; not of a zero update.

    Of the cohort:

    - ``train/top1``: the mean of the clients' by n_k; a module that logs it itself is left to it.
    - ``updates/norm_mean``, ``updates/norm_max``: of ‖Δ_k‖.
    - ``updates/drift``: mean of ‖Δ_k - ū‖, with the weighted sum ū = Σ λ_k Δ'_k of the corrected updates.

    A module that steps its optimizers itself leaves no room for this callback.
    """

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        if (accuracy := top1(outputs)) is not None:
            run.log(TOP1, accuracy)  # dropped where a rule evaluates at other points than the client's parameters
        return loss

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        if TOP1 not in cohort.metrics:
            return cohort
        others = {name: value for name, value in cohort.metrics.items() if name != TOP1}
        return cohort.replace(metrics={"train/top1": cohort.metrics[TOP1]} | others)

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
