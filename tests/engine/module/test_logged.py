"""What a module logs, in one number a name."""

from typing import Any

import pytest
import torch
from torchmetrics import MeanMetric
from toy import Linear, ToyData, trainer

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator
from fl_lightning.engine.module.logged import MetricLog


def test_values_are_reduced_as_they_are_logged() -> None:
    """Values 1 and 4 in batches of 1 and 3: the mean (1·1 + 3·4)/4 = 3.25, the sum 5, the largest 4, the smallest 1. A
    torchmetrics object has its own mean (2 + 4)/2, as often as it is asked.
    """
    logged, metric = MetricLog(), MeanMetric()
    metric.update(torch.tensor([2.0, 4.0]))
    for value, size in ((1.0, 1), (torch.tensor(4.0), 3)):
        for name, reduction in (("mean", "mean"), ("sum", torch.sum), ("max", "max"), ("min", min)):
            logged.add(name, value, reduce_fx=reduction, in_batch=size)
        logged.add("metric", metric, in_batch=size)
    expected = {"mean": 3.25, "sum": 5.0, "max": 4.0, "min": 1.0, "metric": 3.0}
    assert logged.collect() == logged.collect() == expected
    assert logged.reductions() == {"sum": "sum", "max": "max", "min": "min"}
    assert metric.update_count == 1


def test_values_of_steps_and_epochs_have_names_of_their_own() -> None:
    """As under Lightning: on_epoch=True in training_step means both; in a hook between batches, the epoch alone."""
    logged = MetricLog()
    for value, size in ((1.0, 1), (4.0, 3)):
        logged.add("loss", value, on_epoch=True, in_batch=size)
        logged.add("weighted", value, on_epoch=True, on_step=False, batch_size=5, in_batch=size)
    logged.add("once", 7.0, on_epoch=True)
    expected = {"loss": 3.25, "loss_step": 4.0, "loss_epoch": 3.25, "weighted": 2.5, "once": 7.0}
    assert logged.collect() == expected


def test_another_reduction_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected self.log\(…, reduce_fx=mean, sum, min or max\), got prod"):
        MetricLog().add("a", 1.0, reduce_fx=torch.prod)


class Sums(Linear):
    """Logs a tensor that it goes on changing, and takes no batch index."""

    def __init__(self) -> None:
        super().__init__(2)
        self.total = torch.zeros(())
        self.seen = MeanMetric()

    def validation_step(self, batch: Any) -> None:  # type: ignore[override]  # as Lightning allows
        self.total += len(batch)
        self.seen.update(batch.sum())
        self.log("val/total", self.total)
        self.log("val/seen", self.seen)


class Evaluates(FederatedCallback):
    def on_round_end(self, orchestrator: Any, cohort: Any) -> None:
        orchestrator.client.seen.update(100.0)  # as in the middle of an epoch
        self.logged = orchestrator.evaluate([torch.ones(1), torch.ones(3)])
        self.left = float(orchestrator.client.seen.compute())


def test_evaluate_weighs_batches_and_leaves_the_modules_metrics_alone() -> None:
    """Totals 1 and 4 of batches of 1 and 3 examples: (1·1 + 4·3)/4; the sums 1 and 3 in the metric: 2, not with 100."""
    rule = Evaluates()
    trainer(rule).fit(FederatedOrchestrator(Sums()), datamodule=ToyData())
    assert rule.logged == {"val/total": 3.25, "val/seen": 2.0}
    assert rule.left == 100.0
