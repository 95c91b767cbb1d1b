"""Draws from the space of a search: evenly spread, shared between methods, and named so that they can be read."""

import math

import numpy as np
import pytest
from scipy import stats

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.benchmark.space import (
    as_options,
    draw,
    name_of,
    place_of,
    placed,
    typical,
    value_at,
    values_in,
)

SHARED = {"model.client.optimizer.lr": {"log": [0.01, 1.0]}, "model.local_lr_scheduler": ["constant", "cosine"]}
OWN = {"trainer.callbacks.c": {"even": [0.0, 1.0]}}


def test_each_part_of_a_range_is_drawn_from_once() -> None:
    drawn = draw(SHARED, OWN, "Rule", 3, 12)
    assert len(drawn) == 12
    parts = sorted(
        int(12 * place_of(SHARED["model.client.optimizer.lr"], d["model.client.optimizer.lr"])) for d in drawn
    )
    assert parts == list(range(12))
    assert sorted(int(12 * d["trainer.callbacks.c"]) for d in drawn) == list(range(12))
    assert [d["model.local_lr_scheduler"] for d in drawn].count("cosine") == 6


def test_methods_share_rates_and_searches_do_not() -> None:
    rates = [d["model.client.optimizer.lr"] for d in draw(SHARED, OWN, "Rule", 3, 12)]
    assert rates == [d["model.client.optimizer.lr"] for d in draw(SHARED, {}, "FedAvg", 3, 12)]
    assert rates != [d["model.client.optimizer.lr"] for d in draw(SHARED, OWN, "Rule", 4, 12)]
    one, other = ([d["trainer.callbacks.c"] for d in draw(SHARED, OWN, name, 3, 12)] for name in ("Rule", "Other"))
    assert one != other


def test_log_uniform_draws() -> None:
    """Over many searches the logarithms are uniform: Kolmogorov and Smirnov's test does not reject it."""
    rates = [d["lr"] for seed in range(40) for d in draw({"lr": {"log": [0.01, 1.0]}}, {}, "FedAvg", seed, 12)]
    assert stats.kstest(np.log(rates), stats.uniform(math.log(0.01), math.log(100)).cdf).pvalue > 0.01


def test_a_method_may_narrow_what_all_draw() -> None:
    own = {"model.local_lr_scheduler": ["constant"]}
    assert {d["model.local_lr_scheduler"] for d in draw(SHARED, own, "Rule", 3, 12)} == {"constant"}


@pytest.mark.parametrize("spec", [[], {"log": [0, 1]}, {"log": [1, 0.1]}, {"even": [1, 1]}, {"lin": [0, 1]}, 0.1, None])
def test_other_distributions_are_refused(spec: object) -> None:
    with pytest.raises(ConfigurationError, match=r"expected a list of values, \{log: \[low, high\]\} above 0, or"):
        value_at(spec, 0.5)


def test_names_are_read_again() -> None:
    drawn = draw(SHARED, OWN, "Rule", 3, 1)[0]
    read = values_in(name_of(drawn), {**SHARED, **OWN})
    assert float(read["model.client.optimizer.lr"]) == drawn["model.client.optimizer.lr"]
    assert read["model.local_lr_scheduler"] == drawn["model.local_lr_scheduler"]
    assert values_in("c=1", OWN) == {}


def test_a_cosine_ends_with_the_run() -> None:
    words = as_options({"model.local_lr_scheduler": "cosine", "model.client.optimizer.lr": 0.1}, 80)
    assert words[0].startswith("--model.local_lr_scheduler=")
    assert "CosineAnnealingLR" in words[0]
    assert "80" in words[0]
    assert words[1:] == ["--model.client.optimizer.lr=0.1"]


def test_typical_settings_are_means_of_those_that_agree_on_the_schedule() -> None:
    names = ["optimizer.lr=0.1 model.local_lr_scheduler=cosine", "optimizer.lr=0.9 model.local_lr_scheduler=constant"]
    names.append("optimizer.lr=0.4 model.local_lr_scheduler=cosine")
    assert typical(names, SHARED) == {"model.client.optimizer.lr": 0.2, "model.local_lr_scheduler": "cosine"}
    assert typical(names[:2], SHARED)["model.client.optimizer.lr"] == 0.1, "the first of two that differ"


def test_a_number_has_its_place_and_another_value_has_none() -> None:
    name = "optimizer.lr=0.1 model.local_lr_scheduler=cosine callbacks.c=0.25"
    assert (
        placed(name, {**SHARED, **OWN})
        == "optimizer.lr=0.1 (0.50) model.local_lr_scheduler=cosine callbacks.c=0.25 (0.25)"
    )
