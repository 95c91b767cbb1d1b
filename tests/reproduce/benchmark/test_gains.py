"""Gains by hand on three searches; groups of winners; conflict beside gain."""

import math

import numpy as np
import pandas as pd
import pytest

from fl_lightning.reproduce.benchmark.gains import conflict_and_gain, gains, winners


def table(by_method: dict[str, list[float]]) -> pd.DataFrame:
    rows = []
    for place, (method, values) in enumerate(by_method.items()):
        for seed, value in enumerate(values, 1001):
            conflict = {"conflict/ratio": 0.5, "conflict/ratio_after": 0.5 - place / 10}
            sent = {"bytes/up": 100.0, "bytes/down": 100.0 * (place + 1)}
            rows.append({"method": method, "round": 9, "seed": seed, "top1": value, **conflict, **sent})
    return pd.DataFrame(rows)


def test_differences_within_searches() -> None:
    """Better: +1, +2, +3 within the searches, mean 2, standard error 1/√3, t(2) at 97.5 % 4.303, half 2.484.

    Its p value is that of t = 2 √3 with two degrees of freedom, 0.0742.
    """
    found = gains(table({"FedAvg": [50, 60, 70], "Worse": [40, 50, 60], "Better": [51, 62, 73]}), "top1")
    assert list(found.index) == ["FedAvg", "Better", "Worse"]
    better = found.loc["Better"]
    assert (better["level"], better["gain"], better["searches"]) == (62.0, 2.0, 3)
    assert better["half"] == pytest.approx(4.3027 / math.sqrt(3), abs=1e-3)
    assert better["p"] == pytest.approx(0.0742, abs=1e-3)
    worse = found.loc["Worse"]
    assert (worse["gain"], worse["p"]) == (-10.0, 0.0)  # the same difference in every search
    assert math.isnan(found.loc["FedAvg", "p"])


def test_a_search_counts_by_the_mean_of_its_tests() -> None:
    """Gains of the searches' tests: 0 and 2, 1 and 3, 2 and 4; so 1, 2, 3 by search. One test of Broken is missing."""
    first = {"FedAvg": [50.0, 60.0, 70.0], "Better": [50.0, 61.0, 72.0], "Broken": [60.0, 70.0, 80.0]}
    second = {"FedAvg": [51.0, 61.0, 71.0], "Better": [53.0, 64.0, 75.0], "Broken": [61.0, 71.0, 81.0]}
    both = pd.concat([table(first), table(second).assign(seed=lambda rows: rows["seed"] + 1000)], ignore_index=True)
    found = gains(both[~(both["method"].eq("Broken") & both["seed"].eq(2003))], "top1")
    better = found.loc["Better"]
    assert (better["gain"], better["searches"]) == (2.0, 3)
    assert better["half"] == pytest.approx(4.3027 / math.sqrt(3), abs=1e-3)
    assert found.loc["Broken", "searches"] == 2


def test_what_is_sent_and_conflict_are_beside_fedavg() -> None:
    found = gains(table({"FedAvg": [50, 60, 70], "FedAvgM": [51, 61, 71], "Rule": [53, 64, 74]}), "top1")
    rule = found.loc["Rule"]
    assert (rule["up"], rule["down"]) == (1.0, 3.0)
    assert (rule["before"], rule["after"]) == pytest.approx((0.5, 0.3))


def test_two_searches_are_too_few_to_test() -> None:
    assert gains(table({"FedAvg": [50, 60], "Rule": [60, 70]}), "top1")["p"].isna().all()


def test_winners_are_not_clearly_below_the_best() -> None:
    """Near is 1, 0 and -1 below the best, level with it; far is 2, 2.1 and 1.9 below it."""
    best = [60.0, 61.0, 62.0]
    near = [59.0, 61.0, 63.0]
    far = [58.0, 58.9, 60.1]
    results = table({"FedAvg": [50.0, 50.0, 50.0], "Best": best, "Near": near, "Far": far})
    assert winners(results, "top1", ["Best", "Near", "Far"]) == ["Best", "Near"]
    assert winners(results, "top1", ["Far"]) == ["Far"]
    assert winners(results, "top1", []) == []


def test_conflict_and_gain() -> None:
    """Gains in the order of what is taken from the conflict have correlation 1, however rules and problems are drawn.

    Problem b is 100 points above a: that is no relation within a problem.
    """
    rows = [(f"m{at}", problem, at / 10, at + 100.0 * (problem == "b")) for at in range(6) for problem in "ab"]
    columns = ["method", "problem", "less", "gain"]
    value = conflict_and_gain(pd.DataFrame(rows, columns=columns), np.random.default_rng(0))
    assert value == pytest.approx((1, 1, 1))
    opposite = [(*row[:3], -row[3]) for row in rows]
    assert conflict_and_gain(pd.DataFrame(opposite, columns=columns), np.random.default_rng(0))[0] == pytest.approx(-1)
