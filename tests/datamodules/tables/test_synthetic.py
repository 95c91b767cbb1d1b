"""Synthetic: moments by the generator's formulas, clients, refusals. Tolerances: 5 standard errors."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]  # scikit-learn ships no types

from fl_lightning.datamodules import IID, Synthetic
from fl_lightning.datamodules.tables.synthetic import draw_mean, draw_model
from fl_lightning.errors import ConfigurationError

CLIENTS = 2000


def check_variance(values: Any, expected: float) -> None:
    """The variance of n normal numbers has a standard error of sqrt(2 / n) of itself."""
    assert np.var(values) == pytest.approx(expected, rel=5 * math.sqrt(2 / len(values)))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_models_differ_by_a_standard_deviation(alpha: float) -> None:
    """A client's 610 entries have variance 1 around u_k; their mean has variance alpha² + 1/610 over the clients.

    Were alpha a variance, 0.5 would give 0.5 + 1/610 in the place of 0.25 + 1/610.
    """
    generator = np.random.default_rng(0)
    drawn = [draw_model(alpha, generator) for _ in range(CLIENTS)]
    assert (drawn[0][0].shape, drawn[0][1].shape) == ((10, 60), (10,))
    entries = np.stack([np.append(weights, bias) for weights, bias in drawn])
    check_variance(entries.mean(1), alpha**2 + 1 / 610)
    check_variance((entries - entries.mean(1, keepdims=True))[:, :10].ravel(), 1 - 1 / 610)
    assert abs(entries.mean()) < 5 * math.sqrt((alpha**2 + 1 / 610) / CLIENTS)


def test_means_differ_by_a_standard_deviation() -> None:
    """The mean of a client's 60 means has variance beta² + 1/60."""
    generator = np.random.default_rng(0)
    means = np.stack([draw_mean(0.5, generator) for _ in range(CLIENTS)])
    check_variance(means.mean(1), 0.25 + 1 / 60)
    check_variance((means - means.mean(1, keepdims=True))[:, :10].ravel(), 1 - 1 / 60)


def test_inputs_have_decreasing_variances() -> None:
    """Feature j has variance j^-1.2 within a client: 1, 0.435, …, 0.00735."""
    data = Synthetic(0.5, 0.5, num_clients=40)
    inputs, _ = data.load(True)
    names = np.array(data.clients(True))
    assert inputs.dtype == torch.float32
    within = []
    for name in np.unique(names):
        own = inputs.numpy()[names == name].astype(np.float64)
        within.append(own - own.mean(0))
    count = len(names) - 40
    variances = (np.concatenate(within) ** 2).sum(0) / count
    assert variances == pytest.approx(np.arange(1.0, 61) ** -1.2, rel=5 * math.sqrt(2 / count))


def test_sizes_are_log_normal() -> None:
    """log(size - 50) is N(4, 2²), but for the rounding: half of the sizes are at most 50 + e⁴ = 104.6.

    Of 1000 clients, 500 ± 16 are, and 841 ± 12 are below 50 + e⁶ = 453.4, one standard deviation more.
    """
    data = Synthetic(num_clients=1000)
    counted = Counter([*data.clients(True), *data.clients(False)])
    sizes = np.array([*counted.values()])
    assert len(sizes) == 1000
    assert sizes.min() == 50
    assert (sizes <= 104).sum() == pytest.approx(500, abs=5 * 16)
    assert (sizes <= 453).sum() == pytest.approx(841, abs=5 * 12)


def test_each_client_tests_on_a_tenth() -> None:
    """As in the released files: int(0.9 n) to train on, the others to test on."""
    data = Synthetic(num_clients=5)
    train, test = Counter(data.clients(True)), Counter(data.clients(False))
    assert sorted(train) == sorted(test) == [f"f_0000{k}" for k in range(5)]
    for name in train:
        assert train[name] == int(0.9 * (train[name] + test[name]))
    assert data.load(True)[1].shape == (sum(train.values()),)
    assert data.load(False)[0].shape == (sum(test.values()), 60)


def test_a_client_does_not_depend_on_the_others() -> None:
    few, many = Synthetic(num_clients=3), Synthetic(num_clients=7, seed=5)
    rows = len(few.clients(True))
    assert torch.equal(few.load(True)[0], many.load(True)[0][:rows])
    assert not torch.equal(few.load(True)[0][:50], Synthetic(num_clients=3, data_seed=1).load(True)[0][:50])


def transferred(data: Synthetic) -> float:
    """Accuracy of a linear classifier, trained on the first clients, on the last three."""
    inputs, labels = (tensor.numpy() for tensor in data.load(True))
    others = np.array(data.clients(True)) >= "f_00012"
    model: Any = LogisticRegression(C=100.0, max_iter=100).fit(inputs[~others], labels[~others])
    return float(model.score(inputs[others], labels[others]))


@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")
def test_iid_clients_share_one_model() -> None:
    """Under iid, what a model learns from some clients holds for the others; else each client has its own W and b."""
    iid = Synthetic(0, 0, num_clients=15, iid=True)
    assert transferred(iid) > 0.8
    assert transferred(Synthetic(0, 0, num_clients=15)) < 0.5
    inputs, _ = iid.load(True)
    assert inputs.mean(0).abs().max() < 5 / math.sqrt(len(inputs))


def test_clients_come_with_the_data() -> None:
    """Each client evaluates on its own test examples; a partition deals the training examples anew."""
    data = Synthetic(num_clients=4, batch_size=10)
    counted = Counter(data.clients(True))
    assert data.client_names == sorted(counted)
    assert data.sizes.tolist() == [counted[name] for name in sorted(counted)]
    own = torch.cat([inputs for inputs, _ in data.held_out_batches(1)])
    rows = [row for row, name in enumerate(data.clients(False)) if name == "f_00001"]
    assert torch.equal(own, data.load(False)[0][rows])
    mixed = Synthetic(num_clients=4, partition=IID())
    assert int(mixed.sizes.max() - mixed.sizes.min()) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -1}, "alpha must be at least 0 and finite, got -1"),
        ({"beta": math.nan}, "beta must be at least 0 and finite, got nan"),
        ({"test_share": 1.0}, r"test_share must be in \(0, 1\), got 1.0"),
        ({"num_clients": 0}, "num_clients must be at least 1, got 0"),
        ({"data_seed": -1}, "data_seed must be at least 0, got -1"),
        ({"iid": True}, "expected alpha and beta to be 0 for iid clients, got 1.0 and 1.0"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Synthetic(**arguments)
