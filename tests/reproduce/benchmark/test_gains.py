"""Gains by hand on three seeds; false ones where methods are exchanged; conflict beside gain."""

import math

import numpy as np
import pandas as pd
import pytest

from fl_lightning.reproduce.benchmark.gains import conflict_and_gain, false_beats, gains


def table(by_method: dict[str, list[float]]) -> pd.DataFrame:
    rows = []
    for place, (method, values) in enumerate(by_method.items()):
        for seed, value in enumerate(values, 1):
            conflict = {"conflict/ratio": 0.5, "conflict/ratio_after": 0.5 - place / 10}
            costs = {"bytes/total": 100.0 * (place + 1), "seconds": 10.0 + place + seed}
            rows.append({"method": method, "round": 9, "seed": seed, "top1": value, **conflict, **costs})
    return pd.DataFrame(rows)


def test_differences_within_seeds() -> None:
    """Better: +1, +2, +3 within the seeds, mean 2, standard error 1/√3, t(2) at 97.5 % 4.303, half 2.484.

    Its p value is that of t = 2 √3 with two degrees of freedom, 0.0742; by Holm over two methods twice that.
    """
    found = gains(table({"FedAvg": [50, 60, 70], "Worse": [40, 50, 60], "Better": [51, 62, 73]}), "top1")
    assert list(found.index) == ["FedAvg", "Better", "Worse"]
    better = found.loc["Better"]
    assert (better["level"], better["gain"]) == (62.0, 2.0)
    assert better["half"] == pytest.approx(4.3027 / math.sqrt(3), abs=1e-3)
    assert better["p"] == pytest.approx(0.0742, abs=1e-3)  # the larger p of two: Holm's factor is 1
    assert not better["beats"]
    worse = found.loc["Worse"]
    assert (worse["gain"], worse["p"], worse["loses"]) == (-10.0, 0.0, True)  # the same difference with every seed
    assert math.isnan(found.loc["FedAvg", "p"])
    assert math.isnan(better["momentum"])


def test_costs_and_conflict_are_beside_fedavg() -> None:
    found = gains(table({"FedAvg": [50, 60, 70], "FedAvgM": [51, 61, 71], "Rule": [53, 64, 74]}), "top1")
    rule = found.loc["Rule"]
    assert rule["bytes"] == 3.0
    assert rule["seconds"] == pytest.approx(14 / 12)  # medians
    assert (rule["before"], rule["after"]) == pytest.approx((0.5, 0.3))
    assert rule["momentum"] == pytest.approx((2 + 3 + 3) / 3)
    assert found.loc["FedAvgM", "momentum"] == 0.0


def test_two_seeds_are_too_few_to_test() -> None:
    assert gains(table({"FedAvg": [50, 60], "Rule": [60, 70]}), "top1")["p"].isna().all()


def test_exchanged_methods_seldom_beat_fedavg() -> None:
    """One method is 20 points better; exchanged within seeds it is not, but by chance, at the level of the test."""
    draw = np.random.default_rng(1)
    values = {name: list(50 + draw.normal(size=5)) for name in ("FedAvg", "A", "B", "C", "D")}
    values["E"] = list(70 + draw.normal(size=5))
    results = table(values)
    assert gains(results, "top1").loc["E", "beats"]
    counts = false_beats(results, "top1", 200, np.random.default_rng(0))
    assert len(counts) == 200
    assert np.count_nonzero(counts) < 0.1 * 200
    assert results["method"].tolist() == table(values)["method"].tolist()  # left as it was


def test_conflict_and_gain() -> None:
    """Gains in the order of what is taken from the conflict have correlation 1, however methods are drawn."""
    rows = [(f"m{at}", problem, at / 10, float(at)) for at in range(6) for problem in "ab"]
    columns = ["method", "problem", "less", "gain"]
    assert conflict_and_gain(pd.DataFrame(rows, columns=columns), np.random.default_rng(0)) == pytest.approx((1, 1, 1))
    opposite = [(*row[:3], -row[3]) for row in rows]
    value, low, high = conflict_and_gain(pd.DataFrame(opposite, columns=columns), np.random.default_rng(0))
    assert (value, low, high) == pytest.approx((-1, -1, -1))
    assert math.isnan(conflict_and_gain(pd.DataFrame(rows[:4], columns=columns), np.random.default_rng(0))[0])
