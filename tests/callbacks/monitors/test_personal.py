"""PersonalEvaluation by hand on two participants of three clients, and that it changes nothing."""

import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from jsonargparse import ArgumentParser
from lib.command import TINY, fit_on
from lib.hand_made import Row
from lib.resumed import assert_same
from lib.toy import Capture, GivenData, InTurn, Linear, close, trainer
from lightning.pytorch import LightningModule
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.utils.data import TensorDataset
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryHingeLoss

from fl_lightning import ConfigurationError, FederatedCallback, FederatedDataModule, FederatedOrchestrator, Server
from fl_lightning.callbacks import FaultInjection, PersonalEvaluation
from fl_lightning.callbacks.monitors.personal import over_clients
from fl_lightning.datamodules import Digits, Table
from fl_lightning.engine.module.state import Buffers

UPDATES = torch.tensor([[2.0, 0.0], [0.0, 4.0], [9.0, 9.0]], dtype=torch.float64)
POINTS = [[[1.0, 0.0]], [[0.0, 0.0], [0.0, 2.0]], [[5.0, 2.0]]]


@pytest.mark.parametrize(
    ("values", "largest_is_worst", "expected"),
    [
        ([0.5], False, (0.5, 0.5, 0.0, 0.0)),
        ([0.0, 0.0], False, (0.0, 0.0, 0.0, 0.0)),
        ([1.0, 3.0, 8.0], False, (4.0, 1.0, (26 / 3) ** 0.5, 7 / 18)),
        ([1.0, 3.0, 8.0], True, (4.0, 8.0, (26 / 3) ** 0.5, 7 / 18)),
        (list(range(11)), False, (5.0, 0.5, 10**0.5, 4 / 11)),
        (list(range(11)), True, (5.0, 9.5, 10**0.5, 4 / 11)),
        (list(range(10)), True, (4.5, 9.0, 8.25**0.5, 11 / 30)),
    ],
)
def test_mean_worst_tenth_spread_and_gini(values: list[float], largest_is_worst: bool, expected: Any) -> None:
    """1, 3, 8: mean 4, squared deviations 9 + 1 + 16 = 26 over 3 clients; a tenth of three is one client.

    Half the mean difference: 2 (2 + 7 + 5) / 9 / 2 = 14 / 9, in means 7 / 18. Of 0 … n: (n + 2) / 3 / (n + 1).

    0 … 10: a tenth of eleven is two, 0 and 1 or 9 and 10; 2 (1 + 4 + 9 + 16 + 25) / 11 = 10. For ten, (100 - 1) / 12.
    """
    measures = over_clients(torch.tensor(values, dtype=torch.float64), largest_is_worst)
    assert tuple(measures) == ("mean", "worst", "spread", "gini")
    assert tuple(measures.values()) == pytest.approx(expected, abs=1e-9)


class Watched(Linear):
    """Logs the mean squared distance of w to the points of a batch, as an error and as its negative, a score."""

    lower_is_better: tuple[str, ...] = ("val/error",)
    higher_is_better: tuple[str, ...] = ("val/score",)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        error = ((self.w - batch[0]) ** 2).sum(1).mean()
        self.log("val/error", error)
        self.log_dict({"val/score": -error})


class Points(GivenData):
    """Each client holds out its points, one a batch."""

    def __init__(self, points: Any = POINTS, **settings: Any) -> None:
        super().__init__(-UPDATES, samples=[1, 3, 1], sampler=InTurn([0, 1]), **settings)
        self.points = points

    def held_out_batches(self, client: int) -> Iterator[list[Tensor]]:
        return ([torch.tensor([point], dtype=torch.float64)] for point in self.points[client])


def evaluate(rounds: int = 1, every: int = 1, points: Any = POINTS) -> tuple[dict[str, float], Capture]:
    """What is logged in the last round, and the rounds themselves."""
    capture = Capture()
    fit = trainer(PersonalEvaluation(every), capture, rounds=rounds)
    fit.fit(FederatedOrchestrator(Watched(2)), datamodule=Points(points))
    return {name: float(value) for name, value in fit.callback_metrics.items()}, capture


def test_two_participants_of_three_clients() -> None:
    """Evaluate the global model on three clients, and their own models on the two participants, with n = (1, 3)."""
    logged, capture = evaluate()
    model = ((2 + 3 * 0) / 4, (0 + 3 * 4) / 4)  # own models (2, 0) and (0, 4)
    assert model == (0.5, 3)  # by hand
    error_0 = 0.5**2 + 3**2  # squared distances to (1, 0)
    error_1 = ((0.5**2 + 3**2) + (0.5**2 + 1**2)) / 2  # to (0, 0) and (0, 2)
    error_2 = 4.5**2 + 1**2  # to (5, 2)
    assert (error_0, error_1, error_2) == (9.25, 5.25, 21.25)  # by hand
    mean = (error_0 + error_1 + error_2) / 3
    spread = (((error_0 - mean) ** 2 + (error_1 - mean) ** 2 + (error_2 - mean) ** 2) / 3) ** 0.5
    own_0 = 1**2 + 0**2  # (2, 0) to (1, 0)
    own_1 = (4**2 + 2**2) / 2  # (0, 4) to (0, 0) and (0, 2)
    own_mean, own_spread, own_weighted = (own_0 + own_1) / 2, (own_1 - own_0) / 2, (own_0 + 3 * own_1) / 4
    assert (own_mean, own_spread, own_weighted) == (5.5, 4.5, 7.75)  # by hand
    expected = {"held_out/error_mean": mean, "held_out/error_worst": error_2, "held_out/error_spread": spread}
    expected |= {"own/error_mean": own_mean, "own/error_worst": own_1, "own/error_spread": own_spread}
    # Distances 4, 12 and 16 over nine pairs, twice each, and 9 over four: halves in means.
    expected |= {"held_out/error_gini": 64 / 9 / 2 / mean, "own/error_gini": 18 / 4 / 2 / own_mean}
    expected |= {"own/error": own_weighted}
    for name in list(expected):
        sign = 1 if name.endswith(("spread", "gini")) else -1  # the worst score is the smallest
        expected[name.replace("error", "score")] = sign * expected[name]
    assert {name for name in logged if name.startswith(("held_out/", "own/"))} == set(expected)
    assert {name: logged[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    own = [result.metrics["own/error"] for result in capture.cohort.results]
    assert own == pytest.approx([own_0, own_1], abs=1e-9)
    assert close(capture.cohort.anchor + capture.cohort.update, model)


class Serves(FederatedCallback):
    """Serves client k by (k, 0)."""

    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return torch.tensor([float(client), 0.0], dtype=torch.float64), buffers


def test_personal_models_of_all_clients() -> None:
    """(0, 0) to (1, 0): 1. (1, 0) to (0, 0) and (0, 2): 3. (2, 0) to (5, 2): 13. By n = (1, 3, 1): 23 / 5."""
    fit = trainer(PersonalEvaluation(), Serves(), logger=Row(row := {}))
    orchestrator = FederatedOrchestrator(Watched(2))
    fit.fit(orchestrator, datamodule=Points())
    expected = {"error": 23 / 5, "error/0": 1, "error/1": 3, "error/2": 13, "error_mean": 17 / 3, "error_worst": 13}
    assert {name: row[f"personal/{name}"] for name in expected} == pytest.approx(expected)
    assert row["personal/new"] == 1, "the third never takes part"
    assert close(orchestrator.params, [0.5, 3.0])


def test_the_value_of_each_client() -> None:
    """As above; the third client has no own model, since it takes no part."""
    fit = trainer(PersonalEvaluation(), logger=Row(row := {}))
    fit.fit(FederatedOrchestrator(Watched(2)), datamodule=Points())
    held_out = {f"held_out/error/{k}": error for k, error in enumerate([9.25, 5.25, 21.25])}
    held_out |= {name.replace("held_out", "personal"): error for name, error in held_out.items()}
    errors = held_out | {f"own/error/{k}": error for k, error in enumerate([1, 10])}
    scores = {name.replace("error", "score"): -error for name, error in errors.items()}
    assert {name: value for name, value in row.items() if name.rpartition("/")[2].isdigit()} == errors | scores


def test_clients_that_hold_nothing_out_do_not_count() -> None:
    """Only the third does: 21.25 under the global model, and no participant's own model is evaluated."""
    logged, _ = evaluate(points=[[], [], POINTS[2]])
    assert logged["held_out/error_mean"] == logged["held_out/error_worst"] == 21.25
    assert logged["held_out/error_spread"] == 0
    assert not [name for name in logged if name.startswith("own/")]


class Thresholds(Watched):
    """Points are chances of class 1, which is right. Metrics that share equal states, and a mean so far."""

    def __init__(self) -> None:
        super().__init__(2)
        self.right = MetricCollection({f"at{t}": BinaryAccuracy(threshold=t / 100) for t in (50, 70)})
        self.chance = MeanMetric()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        chances = batch[0][:, 0]
        self.right.update(chances, torch.ones(len(chances)).long())
        self.log_dict({f"val/{name}": metric for name, metric in self.right.items()})
        self.chance.update(chances)
        self.log("val/chance", self.chance.compute())


def test_torchmetrics_objects_begin_anew_on_every_client() -> None:
    """Chances 0.9, 0.6, 0.2: above 0.5 are the first two, above 0.7 the first.

    On the first client alone, the two accuracies have equal states: they must not share one from there on.
    """
    fit = trainer(PersonalEvaluation())
    fit.fit(FederatedOrchestrator(Thresholds()), datamodule=Points([[[0.9]], [[0.6]], [[0.2]]]))
    means = {"held_out/at50_mean": 2 / 3, "held_out/at70_mean": 1 / 3, "held_out/chance_mean": 1.7 / 3}
    means |= {"own/at50_mean": 1.0, "own/at70_mean": 1 / 2, "own/chance_mean": 0.75}
    assert {name: float(fit.callback_metrics[name]) for name in means} == pytest.approx(means, abs=1e-6)


class Ranked(Watched):
    """A point is a score and a class; logs the AUROC of a client's points, by torchmetrics or by scikit-learn."""

    higher_is_better = ("val/auroc",)

    def __init__(self, by: str) -> None:
        super().__init__(2)
        self.by, self.auroc = by, BinaryAUROC(thresholds=11 if by == "thresholds" else None)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores, classes = batch[0][:, 0], batch[0][:, 1].long()
        self.auroc.update(scores, classes)
        several = len(classes.unique()) > 1
        by_hand = roc_auc_score(classes, scores) if several else math.nan
        self.log("val/auroc", by_hand if self.by == "scikit-learn" else self.auroc)


RANKED = [[[0.1, 0.0], [0.4, 1.0], [0.6, 0.0], [0.9, 1.0]], [[0.2, 1.0], [0.7, 1.0]], [[0.3, 0.0], [0.8, 1.0]]]


class AtOnce(Points):
    def held_out_batches(self, client: int) -> Iterator[list[Tensor]]:
        return iter([[torch.tensor(self.points[client], dtype=torch.float64)]])


@pytest.mark.parametrize("by", ["torchmetrics", "thresholds", "scikit-learn"])
def test_a_client_that_cannot_have_a_metric_does_not_count(by: str) -> None:
    """AUROC of clients 0 and 2, by scikit-learn, and NumPy's mean, least and deviation; client 1 has one class.

    Gini's coefficient of 0.75 and 1: half the mean difference (2 · 0.25 / 4) / 2, in means of 0.875: 1/14. Of the
    participants, client 0 counts alone; the personal models' mean weighs clients 0 and 2, of one example each.
    """
    known = {k: roc_auc_score(*reversed(np.transpose(RANKED[k]))) for k in (0, 2)}
    values = np.array(list(known.values()))
    fit = trainer(PersonalEvaluation(), logger=Row(row := {}))
    with pytest.warns(UserWarning, match="leaves out") as told:
        fit.fit(FederatedOrchestrator(Ranked(by)), datamodule=AtOnce(RANKED))
    expected = {"mean": values.mean(), "worst": values.min(), "spread": values.std(), "gini": 1 / 14}
    expected |= {str(client): value for client, value in known.items()}
    for group in ("held_out", "personal"):
        found = {name.removeprefix(f"{group}/auroc")[1:]: value for name, value in row.items() if f"{group}/a" in name}
        assert {name: found[name] for name in expected} == pytest.approx(expected)
        assert "1" not in found
    assert row["personal/auroc"] == pytest.approx(values.mean())
    own = {name: value for name, value in row.items() if name.startswith("own/")}
    alone = {"auroc": known[0], "auroc/0": known[0], "auroc_mean": known[0], "auroc_worst": known[0]}
    assert own == pytest.approx({f"own/{name}": v for name, v in {**alone, "auroc_spread": 0, "auroc_gini": 0}.items()})
    counts = {name: value for name, value in row.items() if name.startswith("left_out/")}
    assert counts == {f"left_out/{group}/auroc": 1.0 for group in ("held_out", "own", "personal")}
    lines = [str(each.message) for each in told if "leaves out" in str(each.message)]
    assert lines[0].startswith("round 1: held_out/auroc leaves out client 1, where it is not defined (nan)")
    assert len(lines) == 3


def test_a_metric_that_no_client_has_is_nan() -> None:
    fit = trainer(PersonalEvaluation(), logger=Row(row := {}))
    with pytest.warns(UserWarning, match="held_out/auroc leaves out clients 0, 1, 2, where"):
        fit.fit(FederatedOrchestrator(Ranked("torchmetrics")), datamodule=AtOnce([RANKED[1]] * 3))
    assert math.isnan(row["held_out/auroc_mean"])
    assert math.isnan(row["personal/auroc"])
    assert row["left_out/held_out/auroc"] == 3


class Apart(Watched):
    """Logs the error of w by one name, and things that are no error of w by names with the same words in them."""

    higher_is_better = ()

    def __init__(self, *others: str) -> None:
        super().__init__(2)
        self.lower_is_better = ("val/error", *others)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        error = ((self.w - batch[0]) ** 2).sum(1).mean()
        for times, name in enumerate(self.lower_is_better, 1):
            self.log(name, times * error)


@pytest.mark.parametrize(
    "others",
    [("shuffled/error",), ("val/error_mean", "val/error/1", "val/new", "shuffled/error")],
    ids=["another-group", "measures-of-another"],
)
def test_what_a_module_logs_apart_stays_apart(others: tuple[str, ...]) -> None:
    """As above: errors of 9.25, 5.25 and 21.25, and for each further name a whole multiple of these.

    The own models' are 1 and 10, their mean by n = (1, 3) is 7.75; the personal models are the global model: by
    n = (1, 3, 1), (9.25 + 3 · 5.25 + 21.25) / 5 = 9.25.
    """
    fit = trainer(PersonalEvaluation(), logger=Row(row := {}))
    fit.fit(FederatedOrchestrator(Apart(*others)), datamodule=Points())
    for times, name in enumerate(("error", *others), 1):
        by_client = {str(k): times * value for k, value in enumerate([9.25, 5.25, 21.25])}
        found = {str(k): row[f"held_out/{name}/{k}"] for k in range(3)}
        assert found == pytest.approx(by_client), name
        assert row[f"held_out/{name}_mean"] == pytest.approx(times * (9.25 + 5.25 + 21.25) / 3), name
        assert row[f"held_out/{name}_worst"] == pytest.approx(times * 21.25), name
        assert row[f"own/{name}"] == pytest.approx(times * 7.75), name
        assert row[f"own/{name}_mean"] == pytest.approx(times * 5.5), name
        assert row[f"personal/{name}"] == pytest.approx(times * 9.25), name
        assert row[f"personal/{name}_mean"] == pytest.approx(times * (9.25 + 5.25 + 21.25) / 3), name
    assert row["personal/new"] == 1


class Various(Watched):
    """Logs the first coordinate of a point under a name that says how many points the client holds out."""

    lower_is_better = ()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log(f"val/first_of_{len(batch[0])}", batch[0][:, 0].mean())


def test_clients_that_log_different_names() -> None:
    """Clients 0 and 2 hold out one point each, (1, 0) and (5, 2), client 1 two: (0, 0) and (0, 2)."""
    fit = trainer(PersonalEvaluation(), logger=Row(row := {}))
    with pytest.warns(UserWarning, match="logs no worst clients by val/first_of_1 and 1 more: Various does not"):
        fit.fit(FederatedOrchestrator(Various(2)), datamodule=AtOnce())
    expected = {"held_out/first_of_1_mean": 3.0, "held_out/first_of_2_mean": 0.0, "personal/first_of_1": 3.0}
    expected |= {"personal/first_of_2": 0.0, "personal/first_of_1/2": 5.0, "own/first_of_1": 1.0, "own/first_of_2": 0.0}
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert "held_out/first_of_2/0" not in row


class Tells(Watched):
    """Logs chances of class 1, by names that tell nothing, as what the test gives."""

    lower_is_better = ()
    higher_is_better = ()

    def __init__(self, metric: Any) -> None:
        super().__init__(2)
        self.metric = metric

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        chances = batch[0][:, 0]
        if isinstance(self.metric, Metric):
            self.metric.update(chances, torch.ones(len(chances)).long())
            self.log("val/loss_of_error", self.metric)
        else:
            self.log("val/loss_of_error", chances.mean())


class ErrorRate(BinaryAccuracy):
    """An accuracy's class of which a user has made an error; ``higher_is_better`` is still that of the accuracy."""

    def compute(self) -> Tensor:
        return 1 - super().compute()


@pytest.mark.parametrize(
    ("metric", "worst"),
    [(BinaryAccuracy(), 0.0), (BinaryHingeLoss(), 0.8), (ErrorRate(), None), (MeanMetric(), None), (None, None)],
)
def test_worst_are_the_clients_that_an_object_says_and_never_a_name(metric: Any, worst: float | None) -> None:
    """Chances of 0.9, 0.6 and 0.2: right, right and wrong; hinge losses are one minus these."""
    fit = trainer(PersonalEvaluation(), logger=Row(row := {}))
    orchestrator = FederatedOrchestrator(Tells(metric))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit.fit(orchestrator, datamodule=Points([[[0.9]], [[0.6]], [[0.2]]]))
    lines = [str(each.message) for each in told if "worst" in str(each.message)]
    assert row.get("held_out/loss_of_error_worst") == (None if worst is None else pytest.approx(worst))
    assert row.get("personal/loss_of_error_worst") == row.get("held_out/loss_of_error_worst")
    better = {None: None, 0.0: "higher", 0.8: "lower"}[worst]
    assert orchestrator.better["val/loss_of_error"] == orchestrator.better["held_out/loss_of_error_mean"] == better
    assert lines == [] if worst is not None else len(lines) == 1
    assert "held_out/loss_of_error_mean" in row


def test_evaluates_every_second_round() -> None:
    """What is logged after round 3 is still what round 2 came to."""
    logged, capture = evaluate(rounds=3, every=2)
    assert ["own/error" in cohort.metrics for cohort in capture.cohorts] == [False, True, False]
    second, _ = evaluate(rounds=2)
    for name in ("held_out/error_mean", "own/error_mean"):
        assert logged[name] == second[name]


OWN = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10))
"""


@pytest.mark.slow
def test_two_devices_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes over gloo. Three participants of four: the devices evaluate different numbers of own models."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("own.py").write_text(OWN)
    settings = ["--data.held_out", 0.3, "--data.participation", 3, "--data.partition.alpha", 1.0]
    settings += ["--model.client.network", "own.Net", "--trainer.callbacks", "PersonalEvaluation"]
    for devices in 1, 2:
        fit_on(devices, "--experiment", f"on{devices}", *settings, "--model.on_bad_update", "raise")
    one, two = (tmp_path / "runs" / f"on{devices}" / "version_0" for devices in (1, 2))
    assert_same(one / "checkpoints/last.ckpt", two / "checkpoints/last.ckpt")
    assert (one / "metrics.csv").read_text() == (two / "metrics.csv").read_text()
    assert "own/top1_worst" in (one / "metrics.csv").read_text()


class Silent(Watched):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


@pytest.mark.parametrize(
    ("client", "data", "message"),
    [
        (Linear(2), Points(), "Linear has none: define validation_step, or remove PersonalEvaluation"),
        (Watched(2), Points([[], [], []]), r"out: define held_out_batches\(client\) in Points or a subclass$"),
        (Silent(2), Points(), "Silent.validation_step logs nothing"),
    ],
)
def test_refuses_a_run_that_it_cannot_evaluate(client: LightningModule, data: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trainer(PersonalEvaluation()).fit(FederatedOrchestrator(client), datamodule=data)


TABLE = pd.DataFrame({"site": [0, 0, 1, 1], "x": [0.0, 1.0, 2.0, 3.0], "y": [0.5, 1.0, 1.5, 2.0]})


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (Digits(num_clients=2), ["held_out"]),
        (Table(TABLE, client="site", target="y"), ["held_out", "test_share"]),
        (FederatedDataModule.from_loaders(TensorDataset(torch.zeros(4, 2)), num_clients=2), ["held_out"]),
        (Points([[], [], []]), []),
    ],
)
def test_the_refusal_names_only_options_that_the_data_have(data: FederatedDataModule, options: list[str]) -> None:
    """The command line accepts every option that is named."""
    with pytest.raises(ConfigurationError, match="holds data out: ") as refused:
        trainer(PersonalEvaluation()).fit(FederatedOrchestrator(Watched(2)), datamodule=data)
    ways = str(refused.value).partition("holds data out: ")[2]
    assert re.findall(r"set data\.(\w+)", ways) == options
    assert f"define held_out_batches(client) in {type(data).__name__} or a subclass" in ways
    parser = ArgumentParser()
    parser.add_class_arguments(type(data), "data")
    assert {f"data.{option}" for option in options} <= set(parser.get_defaults(skip_validation=True).keys())


@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_client_that_is_left_out_does_not_count() -> None:
    """Its own model would be nan; the first one's is 1 from its point."""
    fit = trainer(FaultInjection("nan", [1]), PersonalEvaluation())
    fit.fit(FederatedOrchestrator(Watched(2)), datamodule=Points())
    assert float(fit.callback_metrics["own/error_mean"]) == float(fit.callback_metrics["own/error_worst"]) == 1.0
