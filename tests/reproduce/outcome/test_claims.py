"""Claims tested on seeds: verdicts whose p values are derived by hand.

With three seeds t has two degrees of freedom, and then P(T > t) = 1/2 - t / (2 √(2 + t²)).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.outcome.claims import effects, judge, p_above, p_for_and_against

A, B = {"method": "A"}, {"method": "B"}
BETTER = Claim("B is better", B, A)


def runs(values: Mapping[Any, Sequence[float]], *axes: str, round: int = 10) -> pd.DataFrame:
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


def gains(found: Mapping[Any, float], *axes: str) -> pd.DataFrame:
    """Results of three seeds in which A has 0 and B these numbers, by the labels of the axes."""
    labels = {each if isinstance(each, tuple) else (each,): gain for each, gain in found.items()}
    cells = {(*each, "A"): [0.0] * 3 for each in labels} | {(*each, "B"): [gain] * 3 for each, gain in labels.items()}
    return runs(cells, *axes, "method")


def verdict(claim: Claim, results: pd.DataFrame, rows: Sequence[Mapping[str, Any]] = ()) -> tuple[str, str]:
    (judged,) = judge(Experiment("x", "X", "", "", tuple(rows), "", (claim.measure,), (claim,)), results)
    assert judged.text == claim.text
    return judged.verdict, judged.evidence


def values(claim: Claim, results: pd.DataFrame) -> list[float]:
    (one,) = effects(claim, results)
    return [float(value) for value in one.values]


class TestDifference:
    @pytest.mark.parametrize(
        ("a", "b", "expected", "evidence"),
        [
            # 2, 3, 4: mean 3, deviation 1, t = 3√3, t² = 27; p = 1 - √27/√29 = 0.0351.
            ([50, 60, 70], [52, 63, 74], "supported", "+3, p = 0.035, 3 seeds, 1 cell"),
            ([52, 63, 74], [50, 60, 70], "contradicted", "-3, p = 0.035, 3 seeds, 1 cell"),
            # 1, 2, 3: mean 2, t = 2√3, t² = 12; p = 1 - √12/√14 = 0.0742.
            ([50, 60, 70], [51, 62, 73], "undecided", "+2, p = 0.074, 3 seeds, 1 cell"),
            # Seeds are paired: A's are 20 points apart, 1.9 to 2.1 the differences: error 0.1/√3, t² = 1200.
            ([50, 60, 70], [51.9, 62, 72.1], "supported", "+2, p < 0.001, 3 seeds, 1 cell"),
            ([50, 50], [90, 90.1], "too few seeds", "+40, 2 seeds, 1 cell"),
            # The same difference in every seed, no spread and no doubt; 0.1 + 0.2 - 0.3 is rounding's.
            ([0.1, 0.2, 0.3], [0.3, 0.4, 0.5], "supported", "+0.2, p < 0.001, 3 seeds, 1 cell"),
            ([0.3, 0.3, 0.3], [0.1 + 0.2, 0.3, 0.3], "undecided", "+0, p = 1, 3 seeds, 1 cell"),
        ],
    )
    def test_verdict(self, a: list[float], b: list[float], expected: str, evidence: str) -> None:
        assert verdict(BETTER, runs({"A": a, "B": b})) == (expected, f"difference {evidence}")

    def test_says_what_the_paper_has_and_reads_other_measures(self) -> None:
        rows, results = [{**A, "top1": 72.05}, {**B, "top1": 80.47}], runs({"A": [50, 60, 70], "B": [52, 63, 74]})
        assert "+3 (paper +8.42)," in verdict(BETTER, results, rows)[1]
        loss = results.rename(columns={"top1": "val/loss"})
        assert verdict(Claim("lower", A, B, measure="val/loss"), loss)[0] == "contradicted"


class TestCells:
    LABELS = ("alpha", "method")

    def test_mean_over_cells_and_only_those_meant(self) -> None:
        """Differences 1 and 3 at two alphas, 100 at a third that the claim is not about: 2 in each seed."""
        claim = Claim("", B, A, at={"alpha": [1, 2]})
        assert values(claim, gains({1: 1.0, 2: 3.0, 3: 100.0}, "alpha")) == [2, 2, 2]

    def test_a_seed_that_lacks_a_run_is_left_out(self) -> None:
        """Seed 3 has only the cell where B gains 10: with it the mean would be 5, 5, 10. Too few may be left."""
        cells = {(1, "A"): [0, 0, 0, 0], (1, "B"): [10, 10, 10, 10], (2, "A"): [0, 0, 0, 0]}
        results = runs({**cells, (2, "B"): [0, 0, math.nan, 0]}, *self.LABELS)
        assert verdict(BETTER, results) == ("supported", "difference +5, p < 0.001, 3 of 4 seeds, 2 cells")
        results = runs({**cells, (2, "B"): [0, math.nan, math.nan, 0]}, *self.LABELS)
        assert verdict(BETTER, results) == ("too few seeds", "difference +5, 2 of 4 seeds, 2 cells")

    def test_a_cell_that_was_not_run_at_all_is_no_cell(self) -> None:
        """As with --subset: the claim is tested on what there is, and the evidence says on how much."""
        cells = {(1, "A"): [0, 0, 0], (1, "B"): [9, 9, 9], (2, "A"): [0, 0, 0]}
        assert verdict(BETTER, runs(cells, *self.LABELS)) == ("supported", "difference +9, p < 0.001, 3 seeds, 1 cell")

    @pytest.mark.parametrize("odd", [math.inf, None])
    def test_infinite_and_null_labels_are_cells(self, odd: float | None) -> None:
        results = gains({0.1: 1.0, odd: 3.0}, "alpha")
        assert values(BETTER, results) == [2, 2, 2]
        assert values(Claim("", B, A, at={"alpha": odd}), results) == [3, 3, 3]

    def test_a_cell_that_lacks_an_axis(self) -> None:
        """A has no alpha: B at 0.1 against it, named on one side."""
        results = runs({(None, "A"): [0] * 3, (0.1, "B"): [1] * 3, (10, "B"): [3] * 3}, *self.LABELS)
        assert values(Claim("", {**B, "alpha": 0.1}, A), results) == [1, 1, 1]

    def test_not_run(self) -> None:
        """No B; no A at B's alpha; no axis of that name; no run at all."""
        missing = runs({(1, "A"): [0, 0, 0]}, *self.LABELS)
        assert verdict(BETTER, missing) == ("not run", "no seed has runs to compare: method B, method A")
        assert verdict(BETTER, runs({(1, "A"): [0] * 3, (2, "B"): [0] * 3}, *self.LABELS))[0] == "not run"
        assert verdict(Claim("", {"proxy": "even"}, {"proxy": "odd"}), missing)[0] == "not run"
        assert verdict(BETTER, pd.DataFrame()) == ("not run", "no run is finished")

    def test_a_claim_that_leaves_the_cell_open_is_an_error(self) -> None:
        results = runs({(1, "A"): [0] * 3, (2, "A"): [0] * 3, (2, "B"): [1] * 3}, *self.LABELS)
        with pytest.raises(ValueError, match="one cell for each comparison"):
            effects(Claim("", {**B, "alpha": 2}, A), results)


@pytest.mark.parametrize(
    ("claim", "effect"),
    [
        (BETTER, 6),
        (Claim("", B, A, at={"round": 5}), 4),
        (Claim("", B, A, at={"round": [5, 9]}), 5),
        (Claim("", B, A, along="round"), 2),
        (Claim("", {**B, "round": 5}, {**A, "round": 9}), -6),
    ],
)
def test_the_round_is_the_last_unless_named(claim: Claim, effect: float) -> None:
    """4 at round 5, 6 at round 9: 6; 4; 5 on average; 2 more at the later; and 4 - 10 = -6 across them."""
    cells = {(5, "A"): [0] * 3, (9, "A"): [10] * 3, (5, "B"): [4] * 3, (9, "B"): [16] * 3}
    assert values(claim, runs(cells, "round", "method", round=0)) == [effect] * 3


class TestSlope:
    def test_least_squares_over_numbered_labels(self) -> None:
        """Differences 0, 1, 4 at 5, 10 and 20 clients, which count 0, 1, 2: (4 - 0) / 2 = 2, in whichever order."""
        results = gains({20: 4.0, 5: 0.0, 10: 1.0}, "num_clients")
        assert values(Claim("", B, A, along="num_clients"), results) == [2, 2, 2]
        evidence = "fall of the difference per step of num_clients -2, p < 0.001, 3 seeds, 3 cells"
        assert verdict(Claim("", B, A, along="-num_clients"), results) == ("contradicted", evidence)

    def test_iid_is_the_last_step(self) -> None:
        """Gains 6, 3, 0 at alpha 0.1, 1 and infinity fall by 3 a step."""
        results = gains({0.1: 6.0, 1: 3.0, math.inf: 0.0}, "alpha")
        assert values(Claim("", B, A, along="-alpha"), results) == [3, 3, 3]

    def test_other_axes_are_no_part_of_it(self) -> None:
        """X: 100 at 0.1, 101 at 1. Y: 5 at 0.01, 8 at 0.1. Slopes 1 and 3: 2. Z has one alpha and no say.

        One line through all five would rise steeply, for X is high and Y low.
        """
        found = {("X", 0.1): 100.0, ("X", 1.0): 101.0, ("Y", 0.01): 5.0, ("Y", 0.1): 8.0, ("Z", 1.0): -50.0}
        results = gains(found, "dataset", "alpha")
        assert values(Claim("", B, A, along="alpha"), results) == pytest.approx([2, 2, 2])

    def test_one_label_has_no_slope(self) -> None:
        assert verdict(Claim("", B, A, along="alpha"), gains({1: 1.0}, "alpha"))[0] == "not run"


class TestEquality:
    @pytest.mark.parametrize(
        ("differences", "margin", "expected", "evidence"),
        [
            # Mean 0, error 0.1/√3, t = 0.5/error, t² = 75: p = 1/2 - √75/(2√77) = 0.0065.
            ([-0.1, 0, 0.1], 0.5, "supported", "+0, margin 0.5, p = 0.0065"),
            # Mean 0, error 1/√3, t² = 0.75: p = 1/2 - √0.75/(2√2.75) = 0.239. Not different, and not equal either.
            ([-1, 0, 1], 0.5, "undecided", "+0, margin 0.5, p = 0.24"),
            # Mean 3, beyond 0.5 by 2.5, t² = 18.75: p = 1 - √18.75/√20.75 = 0.0494.
            ([2, 3, 4], 0.5, "contradicted", "+3, margin 0.5, p = 0.049"),
            ([-2, -3, -4], 0.5, "contradicted", "-3, margin 0.5, p = 0.049"),
            # Beyond 1 by 2, t² = 12: 0.074, so that a mean beyond the margin is not enough; of equality 1 - 0.074/2.
            ([2, 3, 4], 1.0, "undecided", "+3, margin 1, p = 0.96"),
            ([1, 1, 1], 0.5, "contradicted", "+1, margin 0.5, p < 0.001"),
            # Different from 0 beyond doubt, and equal all the same.
            ([0.1, 0.1, 0.1], 0.5, "supported", "+0.1, margin 0.5, p < 0.001"),
        ],
    )
    def test_verdict(self, differences: list[float], margin: float, expected: str, evidence: str) -> None:
        results = runs({"A": [50, 50, 50], "B": [50 + each for each in differences]})
        assert verdict(Claim("", B, A, by=margin), results) == (expected, f"difference {evidence}, 3 seeds, 1 cell")

    def test_methods_that_learn_nothing_are_not_called_equal(self) -> None:
        """B's mean over seeds is 12 in one of two cells."""
        claim = Claim("", B, A, by=0.5, above=15)
        learned = {(0.1, "A"): [50, 50, 50], (0.1, "B"): [50, 50, 50], (1.0, "A"): [16, 16, 16]}
        results = runs({**learned, (1.0, "B"): [10, 10, 16]}, "alpha", "method")
        assert verdict(claim, results) == ("undecided", "a side learns too little: 12, expected above 15")
        results = runs({**learned, (1.0, "B"): [16, 16, 16]}, "alpha", "method")
        assert verdict(claim, results)[0] == "supported"


class TestEach:
    """A list on a side: the claim is about every one of them."""

    @pytest.mark.parametrize(
        ("b", "c", "expected", "evidence"),
        [
            # A - B is 2, 3, 4 (p = 0.0351), A - C 9, 10, 11 (less): the weaker decides.
            ([48, 47, 46], [41, 40, 39], "supported", "method B: difference +3, p = 0.035, 3 seeds, 1 cell"),
            # A - B is 1, 2, 3 (p = 0.0742), and A - C however clear.
            ([49, 48, 47], [1, 1, 1], "undecided", "method B: difference +2, p = 0.074, 3 seeds, 1 cell"),
            # A - C is -9, -10, -11: t² = 300, p = 1 - √300/√302 = 0.00332; of two comparisons 0.0066.
            ([1, 1, 1], [59, 60, 61], "contradicted", "method C: difference -10, p = 0.0066, 3 seeds, 1 cell"),
            # A - C is -2, -3, -4: 0.0351 alone, 0.0702 of two, which chance may bring; for the claim there is no hint.
            ([1, 1, 1], [52, 53, 54], "undecided", "method C: difference -3, p = 1, 3 seeds, 1 cell"),
            ([1, 1, 1], [], "not run", "method C"),
            ([1, 1, 1], [1, 1, math.nan], "too few seeds", "method C: difference +49, 2 seeds, 1 cell"),
        ],
    )
    def test_verdict(self, b: list[float], c: list[float], expected: str, evidence: str) -> None:
        found = verdict(Claim("A leads", A, {"method": ["B", "C"]}), runs({"A": [50, 50, 50], "B": b, "C": c}))
        lead = "no seed has runs to compare: " if expected == "not run" else ""
        assert found == (expected, f"{lead}method A, {evidence}")

    def test_lists_on_both_sides_are_all_pairs(self) -> None:
        found = effects(
            Claim("", {"method": ["A", "B"]}, {"method": ["C", "D"]}), runs({name: [0.0] for name in "ABCD"})
        )
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
