"""Effects of claims, seed by seed: over which cells, at which round, along which axis."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lib.made_results import BETTER, A, B, runs

from fl_lightning.reproduce.experiments.experiment import Claim
from fl_lightning.reproduce.outcome.claims import effects, shown
from fl_lightning.reproduce.outcome.numbers import read


def gains(found: Mapping[Any, float], *axes: str) -> pd.DataFrame:
    """Results of three seeds in which A has 0 and B these numbers, by the labels of the axes."""
    labels = {each if isinstance(each, tuple) else (each,): gain for each, gain in found.items()}
    cells = {(*each, "A"): [0.0] * 3 for each in labels} | {(*each, "B"): [gain] * 3 for each, gain in labels.items()}
    return runs(cells, *axes, "method")


def values(claim: Claim, results: pd.DataFrame) -> list[float]:
    (one,) = effects(claim, results)
    return [float(value) for value in one.values]


class TestCells:
    LABELS = ("alpha", "method")

    def test_mean_over_cells_and_only_those_meant(self) -> None:
        """Differences 1 and 3 at two alphas, 100 at a third that the claim is not about: 2 in each seed."""
        claim = Claim("", B, A, at={"alpha": [1, 2]})
        assert values(claim, gains({1: 1.0, 2: 3.0, 3: 100.0}, "alpha")) == [2, 2, 2]

    def test_a_seed_that_lacks_a_run_is_left_out(self) -> None:
        """Seed 3 has only the cell where B gains 10: with it the effects would be 5, 5, 10 and 5."""
        cells = {(1, "A"): [0, 0, 0, 0], (1, "B"): [10, 10, 10, 10], (2, "A"): [0, 0, 0, 0]}
        assert values(BETTER, runs({**cells, (2, "B"): [0, 0, math.nan, 0]}, *self.LABELS)) == [5, 5, 5]

    def test_seeds_are_in_ascending_order(self) -> None:
        """Whatever the order of the rows: seeds 1, 2 and 3 gain 1, 2 and 3."""
        results = runs({"A": [0, 0, 0], "B": [1, 2, 3]})
        assert values(BETTER, results.iloc[[4, 0, 5, 2, 3, 1]]) == [1, 2, 3]

    def test_a_cell_that_was_not_run_at_all_is_no_cell(self) -> None:
        """As with --subset: the claim is tested on what there is."""
        cells = {(1, "A"): [0, 0, 0], (1, "B"): [9, 9, 9], (2, "A"): [0, 0, 0]}
        assert values(BETTER, runs(cells, *self.LABELS)) == [9, 9, 9]

    @pytest.mark.parametrize("odd", [math.inf, None])
    def test_infinite_and_null_labels_are_cells(self, odd: float | None) -> None:
        results = gains({0.1: 1.0, odd: 3.0}, "alpha")
        assert values(BETTER, results) == [2, 2, 2]
        assert values(Claim("", B, A, at={"alpha": odd}), results) == [3, 3, 3]

    def test_numbers_beside_words_after_a_file_was_read(self, tmp_path: Path) -> None:
        """A column of 10 and "all" is one of words in the file; the claim speaks of the number."""
        gains({10: 1.0, "all": 3.0}, "batch").to_csv(tmp_path / "results.csv", index=False)
        results = read(tmp_path / "results.csv")
        assert values(Claim("", B, A, at={"batch": 10}), results) == [1, 1, 1]
        assert values(Claim("", {"batch": "all"}, {"batch": 10}, at=B), results) == [2, 2, 2]

    def test_a_cell_that_lacks_an_axis(self) -> None:
        """A has no alpha: B at 0.1 against it, named on one side."""
        results = runs({(None, "A"): [0] * 3, (0.1, "B"): [1] * 3, (10, "B"): [3] * 3}, *self.LABELS)
        assert values(Claim("", {**B, "alpha": 0.1}, A), results) == [1, 1, 1]

    def test_a_number_stands_for_the_other_side(self) -> None:
        """B has 1 and 3 at two alphas, 2 on average: 0.5 above 1.5 in each seed."""
        (one,) = effects(Claim("", B, number=1.5), gains({1: 1.0, 2: 3.0}, "alpha"))
        assert (one.values.tolist(), shown(one)) == ([0.5, 0.5, 0.5], "B")

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
        assert values(Claim("", B, A, along="-num_clients"), results) == [-2, -2, -2]

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
        assert values(Claim("", B, A, along="alpha"), gains({1: 1.0}, "alpha")) == []


def test_lists_on_both_sides_are_all_pairs() -> None:
    found = effects(Claim("", {"method": ["A", "B"]}, {"method": ["C", "D"]}), runs({name: [0.0] for name in "ABCD"}))
    assert [(one.higher["method"], one.than["method"]) for one in found] == [*map(tuple, ("AC", "AD", "BC", "BD"))]


def test_a_comparison_is_named_by_its_sides() -> None:
    (one,) = effects(
        Claim("", {"gamma": 0.95, "method": "B"}, {"gamma": 1.0}), runs({(1.0, "A"): [0]}, "gamma", "method")
    )
    assert shown(one) == "gamma 0.95, B against gamma 1"
