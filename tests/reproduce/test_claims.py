"""Claims tested on seeds: verdicts whose p values are derived by hand.

With three seeds t has two degrees of freedom, and then P(T > t) = 1/2 - t / (2 √(2 + t²)).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fl_lightning.reproduce.claims import effects, judge, p_above, p_for_and_against, slope_weights
from fl_lightning.reproduce.papers import Claim, Experiment

BETTER = Claim("B is better", {"method": "B"}, {"method": "A"})


def runs(values: Mapping[tuple[Any, ...], Sequence[float]], *axes: str, round: int = 10) -> pd.DataFrame:
    """Results: labels of the axes (method unless named) to top-1 of seeds 1, 2, …; nan for a run that failed."""
    axes = axes or ("method",)
    cells = [(dict(zip(axes, labels, strict=True)), seeds) for labels, seeds in values.items()]
    return pd.DataFrame(
        [
            {"round": round, **labels, "seed": seed, "top1": value}
            for labels, seeds in cells
            for seed, value in enumerate(seeds, 1)
            if not math.isnan(value)
        ]
    )[[*(axis for axis in axes if axis != "round"), "round", "seed", "top1"]]


def verdict(claim: Claim, results: pd.DataFrame, rows: Sequence[Mapping[str, Any]] = ()) -> tuple[str, str]:
    experiment = Experiment("x", "X", "", "", tuple(rows), "", ("top1",), (claim,))
    (judged,) = judge(experiment, results)
    assert judged.text == claim.text
    return judged.verdict, judged.evidence


def values(claim: Claim, results: pd.DataFrame) -> list[float]:
    (one,) = effects(claim, results)
    return [float(value) for value in one.values]


class TestDifference:
    def test_supported(self) -> None:
        """2, 3, 4: mean 3, deviation 1, t = 3√3, t² = 27; p = 1 - √27/√29 = 0.0351."""
        found = verdict(BETTER, runs({("A",): [50, 60, 70], ("B",): [52, 63, 74]}))
        assert found == ("supported", "difference +3, p = 0.035, 3 seeds, 1 cell")

    def test_contradicted(self) -> None:
        """The same, the other way round."""
        found = verdict(BETTER, runs({("B",): [50, 60, 70], ("A",): [52, 63, 74]}))
        assert found == ("contradicted", "difference -3, p = 0.035, 3 seeds, 1 cell")

    def test_undecided(self) -> None:
        """1, 2, 3: mean 2, t = 2√3, t² = 12; p = 1 - √12/√14 = 0.0742."""
        found = verdict(BETTER, runs({("A",): [50, 60, 70], ("B",): [51, 62, 73]}))
        assert found == ("undecided", "difference +2, p = 0.074, 3 seeds, 1 cell")

    def test_pairs_seeds(self) -> None:
        """A's seeds are 20 points apart, B's difference to A is 1.9 to 2.1 in each: mean 2, error 0.1/√3, t² = 1200."""
        assert verdict(BETTER, runs({("A",): [50, 60, 70], ("B",): [51.9, 62, 72.1]}))[0] == "supported"

    def test_two_seeds_are_too_few_however_clear(self) -> None:
        found = verdict(BETTER, runs({("A",): [50, 50], ("B",): [90, 90.1]}))
        assert found == ("too few seeds", "difference +40, 2 seeds, 1 cell")

    def test_the_same_difference_in_every_seed(self) -> None:
        """No spread, and no doubt: 0.1 + 0.2 - 0.3 and the like are rounding's."""
        assert verdict(BETTER, runs({("A",): [0.1, 0.2, 0.3], ("B",): [0.3, 0.4, 0.5]}))[0] == "supported"
        same = verdict(BETTER, runs({("A",): [0.3, 0.3, 0.3], ("B",): [0.1 + 0.2, 0.3, 0.3]}))
        assert same == ("undecided", "difference +0, p = 1, 3 seeds, 1 cell")

    def test_says_what_the_paper_has(self) -> None:
        rows = [{"method": "A", "top1": 72.05}, {"method": "B", "top1": 80.47}]
        assert "+3 (paper +8.42)," in verdict(BETTER, runs({("A",): [50, 60, 70], ("B",): [52, 63, 74]}), rows)[1]

    def test_other_measures_are_read(self) -> None:
        results = runs({("A",): [50, 60, 70], ("B",): [52, 63, 74]}).rename(columns={"top1": "val/loss"})
        claim = Claim("lower", {"method": "A"}, {"method": "B"}, measure="val/loss")
        (judged,) = judge(Experiment("x", "X", "", "", (), "", ("val/loss",), (claim,)), results)
        assert judged.verdict == "contradicted"


class TestCells:
    LABELS = ("alpha", "method")

    def test_mean_over_cells_and_only_those_meant(self) -> None:
        """Differences 1 and 3 at two alphas, 100 at a third that the claim is not about: 2 in each seed."""
        cells = {(alpha, "A"): [0.0] * 3 for alpha in (1, 2, 3)}
        cells |= {(1, "B"): [1.0] * 3, (2, "B"): [3.0] * 3, (3, "B"): [100.0] * 3}
        claim = Claim("", {"method": "B"}, {"method": "A"}, at={"alpha": [1, 2]})
        assert values(claim, runs(cells, *self.LABELS)) == [2, 2, 2]

    def test_a_seed_that_lacks_a_run_is_left_out(self) -> None:
        """Seed 3 has only the cell where B gains 10: with it the mean would be 5, 5, 10."""
        cells = {(1, "A"): [0, 0, 0, 0], (1, "B"): [10, 10, 10, 10], (2, "A"): [0, 0, 0, 0]}
        results = runs({**cells, (2, "B"): [0, 0, math.nan, 0]}, *self.LABELS)
        assert values(BETTER, results) == [5, 5, 5]
        assert verdict(BETTER, results) == ("supported", "difference +5, p < 0.001, 3 of 4 seeds, 2 cells")

    def test_leaving_seeds_out_may_leave_too_few(self) -> None:
        cells = {(1, "A"): [0, 0, 0], (1, "B"): [9, 9, 9], (2, "A"): [0, 0, 0], (2, "B"): [math.nan, 9, 9]}
        found = verdict(BETTER, runs(cells, *self.LABELS))
        assert found == ("too few seeds", "difference +9, 2 of 3 seeds, 2 cells")

    def test_a_cell_that_was_not_run_at_all_is_no_cell(self) -> None:
        """As with --subset: the claim is tested on what there is, and the evidence says on how much."""
        cells = {(1, "A"): [0, 0, 0], (1, "B"): [9, 9, 9], (2, "A"): [0, 0, 0]}
        assert verdict(BETTER, runs(cells, *self.LABELS)) == ("supported", "difference +9, p < 0.001, 3 seeds, 1 cell")

    @pytest.mark.parametrize("odd", [math.inf, None])
    def test_infinite_and_null_labels_are_cells(self, odd: float | None) -> None:
        """Differences 1 and 3."""
        cells = {(0.1, "A"): [0] * 3, (odd, "A"): [0] * 3, (0.1, "B"): [1] * 3, (odd, "B"): [3] * 3}
        results = runs(cells, *self.LABELS)
        assert values(BETTER, results) == [2, 2, 2]
        assert values(Claim("", {"method": "B"}, {"method": "A"}, at={"alpha": odd}), results) == [3, 3, 3]

    def test_a_cell_that_lacks_an_axis(self) -> None:
        """A has no alpha: B at 0.1 against it, named on one side."""
        results = runs({(None, "A"): [0] * 3, (0.1, "B"): [1] * 3, (10, "B"): [3] * 3}, *self.LABELS)
        assert values(Claim("", {"method": "B", "alpha": 0.1}, {"method": "A"}), results) == [1, 1, 1]

    def test_not_run(self) -> None:
        """No B; no A at B's alpha; no axis of that name; no run at all."""
        missing = runs({(1, "A"): [0, 0, 0]}, *self.LABELS)
        assert verdict(BETTER, missing) == ("not run", "no seed has runs to compare: method B, method A")
        assert verdict(BETTER, runs({(1, "A"): [0] * 3, (2, "B"): [0] * 3}, *self.LABELS))[0] == "not run"
        assert verdict(Claim("", {"proxy": "even"}, {"proxy": "odd"}), missing)[0] == "not run"
        assert verdict(BETTER, pd.DataFrame()) == ("not run", "no run is finished")

    def test_a_claim_that_leaves_the_cell_open_is_an_error(self) -> None:
        results = runs({(1, "A"): [0] * 3, (2, "A"): [0] * 3, (2, "B"): [1] * 3}, *self.LABELS)
        with pytest.raises(pd.errors.MergeError):
            effects(Claim("", {"method": "B", "alpha": 2}, {"method": "A"}), results)


class TestRounds:
    RESULTS = runs(
        {(5, "A"): [0] * 3, (9, "A"): [10] * 3, (5, "B"): [4] * 3, (9, "B"): [16] * 3}, "round", "method", round=0
    )

    def test_the_last_unless_named(self) -> None:
        """4 at round 5, 6 at round 9: 6; 4; 5 on average; 4 - 10 = -6 across them; and 2 more at the later."""
        sides = ({"method": "B"}, {"method": "A"})
        assert values(Claim("", *sides), self.RESULTS) == [6, 6, 6]
        assert values(Claim("", *sides, at={"round": 5}), self.RESULTS) == [4, 4, 4]
        assert values(Claim("", *sides, at={"round": [5, 9]}), self.RESULTS) == [5, 5, 5]
        assert values(Claim("", *sides, along="round"), self.RESULTS) == [2, 2, 2]
        across = Claim("", {"method": "B", "round": 5}, {"method": "A", "round": 9})
        assert values(across, self.RESULTS) == [-6, -6, -6]


class TestSlope:
    def test_least_squares_over_numbered_labels(self) -> None:
        """Differences 0, 1, 4 at 5, 10 and 20 clients, which count 0, 1, 2: (4 - 0) / 2 = 2, in whichever order."""
        gains = {20: 4.0, 5: 0.0, 10: 1.0}
        cells = {(clients, "A"): [0.0] * 3 for clients in gains}
        results = runs({**cells, **{(c, "B"): [gain] * 3 for c, gain in gains.items()}}, "num_clients", "method")
        assert values(Claim("", {"method": "B"}, {"method": "A"}, along="num_clients"), results) == [2, 2, 2]
        falling = Claim("", {"method": "B"}, {"method": "A"}, along="-num_clients")
        assert values(falling, results) == [-2, -2, -2]
        assert verdict(falling, results) == (
            "contradicted",
            "fall of the difference per step of num_clients -2, p < 0.001, 3 seeds, 3 cells",
        )

    def test_iid_is_the_last_step(self) -> None:
        """Gains 6, 3, 0 at alpha 0.1, 1 and infinity fall by 3 a step."""
        cells = {(alpha, "A"): [0.0] * 3 for alpha in (0.1, 1, math.inf)}
        cells |= {(alpha, "B"): [gain] * 3 for alpha, gain in ((0.1, 6.0), (1, 3.0), (math.inf, 0.0))}
        results = runs(cells, "alpha", "method")
        assert values(Claim("", {"method": "B"}, {"method": "A"}, along="-alpha"), results) == [3, 3, 3]

    def test_other_axes_are_no_part_of_it(self) -> None:
        """X: 100 at 0.1, 101 at 1. Y: 5 at 0.01, 8 at 0.1. Slopes 1 and 3: 2. Z has one alpha and no say.

        One line through all five would rise steeply, for X is high and Y low.
        """
        gains = {("X", 0.1): 100.0, ("X", 1.0): 101.0, ("Y", 0.01): 5.0, ("Y", 0.1): 8.0, ("Z", 1.0): -50.0}
        cells = {(*labels, "A"): [0.0] * 3 for labels in gains}
        cells |= {(*labels, "B"): [gain] * 3 for labels, gain in gains.items()}
        results = runs(cells, "dataset", "alpha", "method")
        assert values(Claim("", {"method": "B"}, {"method": "A"}, along="alpha"), results) == pytest.approx([2, 2, 2])

    def test_weights(self) -> None:
        """Positions 0, 1, 2 about 1 are -1, 0, 1, their squares sum to 2."""
        cells = pd.DataFrame({"alpha": [0.1, 1.0, math.inf], "round": 5})
        assert slope_weights(cells, ["alpha", "round"], "alpha").tolist() == [-0.5, 0, 0.5]

    def test_one_label_has_no_slope(self) -> None:
        results = runs({(1, "A"): [0] * 3, (1, "B"): [1] * 3}, "alpha", "method")
        assert verdict(Claim("", {"method": "B"}, {"method": "A"}, along="alpha"), results)[0] == "not run"


class TestEquality:
    @pytest.mark.parametrize(
        ("differences", "margin", "expected"),
        [
            # Mean 0, error 0.1/√3, t = 0.5/error, t² = 75: p = 1/2 - √75/(2√77) = 0.0065.
            ([-0.1, 0, 0.1], 0.5, ("supported", "difference +0, margin 0.5, p = 0.0065, 3 seeds, 1 cell")),
            # Mean 0, error 1/√3, t² = 0.75: p = 1/2 - √0.75/(2√2.75) = 0.239. Not different, and not equal either.
            ([-1, 0, 1], 0.5, ("undecided", "difference +0, margin 0.5, p = 0.24, 3 seeds, 1 cell")),
            # Mean 3, beyond 0.5 by 2.5, t² = 18.75: p = 1 - √18.75/√20.75 = 0.0494.
            ([2, 3, 4], 0.5, ("contradicted", "difference +3, margin 0.5, p = 0.049, 3 seeds, 1 cell")),
            ([-2, -3, -4], 0.5, ("contradicted", "difference -3, margin 0.5, p = 0.049, 3 seeds, 1 cell")),
            # Beyond 1 by 2, t² = 12: 0.074, so that a mean beyond the margin is not enough; of equality 1 - 0.074/2.
            ([2, 3, 4], 1.0, ("undecided", "difference +3, margin 1, p = 0.96, 3 seeds, 1 cell")),
            # Identical runs.
            ([0, 0, 0], 0.5, ("supported", "difference +0, margin 0.5, p < 0.001, 3 seeds, 1 cell")),
            ([1, 1, 1], 0.5, ("contradicted", "difference +1, margin 0.5, p < 0.001, 3 seeds, 1 cell")),
            # Different from 0 beyond doubt, and equal all the same.
            ([0.1, 0.1, 0.1], 0.5, ("supported", "difference +0.1, margin 0.5, p < 0.001, 3 seeds, 1 cell")),
        ],
    )
    def test_verdict(self, differences: list[float], margin: float, expected: tuple[str, str]) -> None:
        results = runs({("A",): [50, 50, 50], ("B",): [50 + each for each in differences]})
        assert verdict(Claim("", {"method": "B"}, {"method": "A"}, by=margin), results) == expected

    def test_methods_that_learn_nothing_are_not_called_equal(self) -> None:
        """B's mean over seeds is 12 in one of two cells."""
        claim = Claim("", {"method": "B"}, {"method": "A"}, by=0.5, above=15)
        learned = {(0.1, "A"): [50, 50, 50], (0.1, "B"): [50, 50, 50], (1.0, "A"): [16, 16, 16]}
        results = runs({**learned, (1.0, "B"): [10, 10, 16]}, "alpha", "method")
        assert verdict(claim, results) == ("undecided", "a side learns too little: 12, expected above 15")
        results = runs({**learned, (1.0, "B"): [16, 16, 16]}, "alpha", "method")
        assert verdict(claim, results)[0] == "supported"


class TestEach:
    """A list on a side: the claim is about every one of them."""

    LEADS = Claim("A leads", {"method": "A"}, {"method": ["B", "C"]})

    def test_supported_if_every_one_is(self) -> None:
        """A - B is 2, 3, 4 (p = 0.0351), A - C 9, 10, 11 (less): the weaker decides."""
        results = runs({("A",): [50, 50, 50], ("B",): [48, 47, 46], ("C",): [41, 40, 39]})
        assert verdict(self.LEADS, results) == (
            "supported",
            "method A, method B: difference +3, p = 0.035, 3 seeds, 1 cell",
        )

    def test_undecided_if_one_is(self) -> None:
        """A - B is 1, 2, 3 (p = 0.0742), and A - C however clear."""
        results = runs({("A",): [50, 50, 50], ("B",): [49, 48, 47], ("C",): [1, 1, 1]})
        assert verdict(self.LEADS, results) == (
            "undecided",
            "method A, method B: difference +2, p = 0.074, 3 seeds, 1 cell",
        )

    def test_contradicted_if_one_is_beyond_chance(self) -> None:
        """A - C is -9, -10, -11: t² = 300, p = 1 - √300/√302 = 0.00332; of two comparisons 0.0066."""
        results = runs({("A",): [50, 50, 50], ("B",): [1, 1, 1], ("C",): [59, 60, 61]})
        assert verdict(self.LEADS, results) == (
            "contradicted",
            "method A, method C: difference -10, p = 0.0066, 3 seeds, 1 cell",
        )

    def test_not_contradicted_by_one_of_two_that_chance_may_bring(self) -> None:
        """A - C is -2, -3, -4: 0.0351 alone, 0.0702 of two."""
        results = runs({("A",): [50, 50, 50], ("B",): [1, 1, 1], ("C",): [52, 53, 54]})
        assert verdict(self.LEADS, results)[0] == "undecided"

    def test_all_of_them_must_have_been_run(self) -> None:
        results = runs({("A",): [50, 50, 50], ("B",): [1, 1, 1]})
        assert verdict(self.LEADS, results) == ("not run", "no seed has runs to compare: method A, method C")
        few = runs({("A",): [50, 50, 50], ("B",): [1, 1, 1], ("C",): [1, 1, math.nan]})
        assert verdict(self.LEADS, few)[0] == "too few seeds"

    def test_lists_on_both_sides_are_all_pairs(self) -> None:
        results = runs({(name,): [0.0] for name in "ABCD"})
        found = effects(Claim("", {"method": ["A", "B"]}, {"method": ["C", "D"]}), results)
        assert [(one.higher["method"], one.than["method"]) for one in found] == [*map(tuple, ("AC", "AD", "BC", "BD"))]


def test_p_values_agree_with_the_closed_form() -> None:
    """1, 2, 3, 6 with three degrees of freedom, where P(T > t) = 1/2 - (arctan(t/√3) + t√3/(3 + t²)) / π.

    Mean 3, deviation √(14/3), error √(7/6), t = 3/√(7/6).
    """
    t = 3 / math.sqrt(7 / 6)
    p = 0.5 - (math.atan(t / math.sqrt(3)) + t * math.sqrt(3) / (3 + t * t)) / math.pi
    assert p_above(np.array([1.0, 2, 3, 6]), 0) == pytest.approx(p)
    assert p_for_and_against(np.array([1.0, 2, 3, 6])) == pytest.approx((2 * p, 1))
    assert p_for_and_against(-np.array([1.0, 2, 3, 6])) == pytest.approx((1, 2 * p))


def test_a_true_null_is_rejected_as_often_as_the_level_says() -> None:
    """4000 claims about four seeds of noise: 5 % are decided, half each way (standard error 0.34 and 0.24 points)."""
    noise = np.random.default_rng(0).normal(size=(4000, 4))
    decided = np.array([[p < 0.05 for p in p_for_and_against(values)] for values in noise])
    assert decided.mean(axis=0) == pytest.approx([0.025, 0.025], abs=0.01)
