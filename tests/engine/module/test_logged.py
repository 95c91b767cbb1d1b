"""What a module logs, in one number a name."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from lib.hand_made import Row
from lib.toy import GivenData, Linear, Quadratic, ToyData, trainer
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import CatMetric, MeanMetric, MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision, MulticlassAUROC
from torchmetrics.utilities import prints

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


class Follows(Linear):
    """Gives metrics predictions with their graph, as the plain Trainer accepts."""

    def __init__(self) -> None:
        super().__init__(2)
        self.error = MeanMetric()
        self.both = MetricCollection({"error": MeanMetric(), "all": CatMetric()})

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.error(loss)
        self.both(loss)
        self.log("train/error", self.error, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any) -> None:  # type: ignore[override]  # as Lightning allows
        self.error.update(batch.sum())
        self.log("val/error", self.error)


class Looks(FederatedCallback):
    def on_client_end(self, orchestrator: Any, run: Any) -> None:
        error = orchestrator.client.error
        state = dict(vars(error))
        with pytest.raises(RuntimeError, match="graph leaves"):
            deepcopy(error)
        self.logged = orchestrator.evaluate([torch.ones(1), torch.ones(3)])
        assert orchestrator.client.error is error
        assert vars(error) == state


def test_metrics_that_hold_a_graph_are_set_aside_for_an_evaluation() -> None:
    rule = Looks()
    data = GivenData(torch.ones(2, 2, dtype=torch.float64))
    trainer(rule).fit(FederatedOrchestrator(Follows(), on_bad_update="raise"), datamodule=data)
    assert rule.logged == {"val/error": 2.0}


class Shows(Quadratic):
    """Tells Lightning of each metric whether the progress bar and the loggers get it."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("bar", loss, prog_bar=True)
        self.log("quiet", loss, logger=False)
        self.log_dict({"bar_alone": loss}, True, False)
        self.log("often", loss, prog_bar=True, on_step=True, on_epoch=True)
        self.log("plain", loss)
        return loss


def test_what_the_progress_bar_and_the_loggers_get_is_what_lightning_gives_them() -> None:
    """In every round, by a plain Trainer on one client's data; "often" itself is a name of ours alone."""
    alone, plain = trainer(rounds=2, logger=Row(control := {}), log_every_n_steps=1), ToyData().client_dataset(1)
    alone.fit(Shows(), DataLoader(plain, batch_size=1))
    names = {"bar", "quiet", "bar_alone", "often_step", "often_epoch", "plain"}
    assert names <= set(alone.callback_metrics)
    run = trainer(rounds=2, logger=Row(logged := {}), log_every_n_steps=1)
    run.fit(FederatedOrchestrator(Shows()), datamodule=ToyData())
    assert names <= set(run.callback_metrics)
    assert names & set(run.progress_bar_metrics) == names & set(alone.progress_bar_metrics)
    assert names & set(logged) == names & set(control) == {"bar", "often_step", "often_epoch", "plain"}
    assert "train/loss" in run.progress_bar_metrics


SCORES, ONE, BOTH = torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.ones(4).long(), torch.tensor([0, 1, 0, 1])
CHANCES = torch.tensor([[0.2, 0.5, 0.3], [0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.1, 0.2, 0.7]])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("thresholds", [None, 11])
def test_a_metric_that_needs_a_class_is_nan_without_that_class(
    thresholds: Any, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As scikit-learn says: one class has no AUROC, and precision is not averaged over recall without a positive.

    On every device: torchmetrics warns on the first one alone. Scores lie on the thresholds 0, 0.1, …, 1.
    """
    monkeypatch.setattr(prints.rank_zero_only, "rank", rank)
    cases: dict[str, tuple[Any, Tensor, Tensor, bool]] = {
        "AUROC": (BinaryAUROC(thresholds=thresholds), SCORES, BOTH, True),
        "AUROC without negatives": (BinaryAUROC(thresholds=thresholds), SCORES, ONE, False),
        "AUROC without positives": (BinaryAUROC(thresholds=thresholds), SCORES, 1 - ONE, False),
        "AP without negatives": (BinaryAveragePrecision(thresholds=thresholds), SCORES, ONE, True),
        "AP without positives": (BinaryAveragePrecision(thresholds=thresholds), SCORES, 1 - ONE, False),
        "AUROC of three classes": (
            MulticlassAUROC(3, thresholds=thresholds),
            CHANCES,
            torch.tensor([0, 1, 2, 0]),
            True,
        ),
        "AUROC of two of three": (MulticlassAUROC(3, thresholds=thresholds), CHANCES, BOTH, False),
        "weighted of two of three": (MulticlassAUROC(3, "weighted", thresholds), CHANCES, BOTH, True),
        "weighted of one of three": (MulticlassAUROC(3, "weighted", thresholds), CHANCES, ONE, False),
    }
    logged = MetricLog()
    for name, (metric, scores, targets, _) in cases.items():
        metric.update(scores, targets)
        float(metric.compute())  # torchmetrics remembers the value, and does not warn again
        logged.add(name, metric)
    for found in (logged.collect(), logged.collect()):
        assert {name: not np.isnan(value) for name, value in found.items()} == {n: case[3] for n, case in cases.items()}
        assert found["AUROC"] == pytest.approx(roc_auc_score(BOTH, SCORES)) == 0.75
        assert found["AP without negatives"] == 1.0
        each = [roc_auc_score(label == BOTH, CHANCES[:, label]) for label in (0, 1)]  # two examples of each
        assert found["weighted of two of three"] == pytest.approx(np.mean(each))
    assert prints.rank_zero_only.rank == rank


class Ranks(Quadratic):
    """Logs the AUROC of its client's training, of which client 1 has one class alone."""

    def __init__(self) -> None:
        super().__init__()
        self.auroc = BinaryAUROC()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        one_class = bool(batch[0][0, 0] == 3)
        self.auroc.update(SCORES, ONE if one_class else BOTH)
        self.log("train/auroc", self.auroc, on_epoch=True, on_step=False)
        return super().training_step(batch, batch_idx)


def test_a_client_without_a_metric_is_named_once_and_counted() -> None:
    """The mean is that of the other client, as scikit-learn computes it, in place of (0.75 + 3·0)/4."""
    run = trainer(rounds=2, logger=Row(logged := {}))
    with pytest.warns(UserWarning, match="leaves out") as told:
        run.fit(FederatedOrchestrator(Ranks()), datamodule=ToyData())
    lines = [str(each.message) for each in told if "leaves out" in str(each.message)]
    assert lines == [
        "round 1: train/auroc leaves out client 1, where it is not defined (nan), as AUROC is not on examples of one "
        "class, or where training has diverged; left_out/train/auroc counts such clients"
    ]
    assert logged["train/auroc"] == pytest.approx(roc_auc_score(BOTH, SCORES))
    assert logged["left_out/train/auroc"] == 1
    assert not [each for each in told if "meaningless" in str(each.message)], "said by the line"
