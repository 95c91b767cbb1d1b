"""Verdicts on claims: p values derived by hand, looks after 3, 5, 8 and 12 seeds, and how often chance decides.

With three seeds t has two degrees of freedom, and then P(T > t) = 1/2 - t / (2 √(2 + t²)): a two-sided p value is
1 - √(t² / (2 + t²)). The values 2.5, 3 and 3.5 have mean 3 and error 0.5/√3, so t² = 108 and p = 0.0091.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lib.made_results import BETTER, A, B, runs
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.report.statistics import p_above
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.outcome.gate import FELL
from fl_lightning.reproduce.outcome.verdict import FALSE, LEVELS, Finding, decide, judge, p_values

P = 1 - math.sqrt(108 / 110)
CLEAR = [2.5, 3.0, 3.5]


def found(claim: Claim, results: pd.DataFrame, rows: Sequence[Mapping[str, Any]] = (), fall: float = 0.0) -> Finding:
    results = results if results.empty or math.isnan(fall) else results.assign(**{FELL: fall})
    (finding,) = judge(Experiment("x", "X", "", "", tuple(rows), "", (claim.measure,), (claim,)), results)
    return finding


def gain(*values: float) -> pd.DataFrame:
    """Results in which B gains these values over A, seed by seed."""
    base = [100.0 + 10 * seed for seed in range(len(values))]
    return runs({"A": base, "B": [a + b for a, b in zip(base, values, strict=True)]})


@pytest.mark.parametrize(
    ("values", "paper", "verdict", "p"),
    [
        (CLEAR, None, "holds", P),
        ([-each for each in CLEAR], None, "opposite", P),
        # 2, 3 and 4: t² = 27, p = 1 - √(27/29) = 0.035, above the first level.
        ([2, 3, 4], None, "open", 1 - math.sqrt(27 / 29)),
        # The same number in every seed leaves no doubt; 0.1 + 0.2 - 0.3 is rounding's.
        ([0.2, 0.2, 0.2], None, "holds", 0),
        ([0.1 + 0.2 - 0.3, 0, 0], None, "open", 1),
        # Above half of 2 by 2: t² = 48, p = 0.020. Above half of 0.4 by 2.8: t² = 94.08, p = 0.0105.
        (CLEAR, 2, "open", 1 - math.sqrt(48 / 50)),
        (CLEAR, 0.4, "open", 1 - math.sqrt(94.08 / 96.08)),
        (CLEAR, 0.1, "holds", 1 - math.sqrt(104.43 / 106.43)),
        # Below half of 12 by 3, as far as above 0; in a paper of 6, half of the effect itself.
        (CLEAR, 12, "too small", P),
        # Nothing, which is below half of 6 by 3.
        ([-0.5, 0, 0.5], 6, "too small", P),
        (CLEAR, 6, "open", 1),
        # Above 0, and below half of 9 by 1.5: t² = 27.
        (CLEAR, 9, "open", 1 - math.sqrt(27 / 29)),
        # A paper whose numbers for these cells are against its claim: the side alone is asked for.
        (CLEAR, -4, "holds", P),
        ([-each for each in CLEAR], 12, "opposite", P),
    ],
)
def test_side_and_size(values: list[float], paper: float | None, verdict: str, p: float) -> None:
    """All looks together multiply the p value by 6 %, by 1 % at the first look."""
    rows = [] if paper is None else [{**A, "top1": 50.0}, {**B, "top1": 50.0 + paper}]
    finding = found(BETTER, gain(*values), rows)
    assert (finding.verdict, finding.seeds) == (verdict, 3)
    assert finding.p == pytest.approx(min(1, 6 * p), rel=1e-3)
    assert finding.effect == pytest.approx(np.mean(values))
    assert finding.paper == pytest.approx(math.nan if paper is None else paper, nan_ok=True)


def test_an_open_claim_whose_side_is_clear_says_so() -> None:
    """Above 0 with p = 0.0091, and above half of 2 with p = 0.020 only."""
    rows = [{**A, "top1": 50.0}, {**B, "top1": 52.0}]
    assert found(BETTER, gain(*CLEAR), rows).why == "the side is clear, the size is not"
    assert found(BETTER, gain(2, 3, 4), rows).why == ""


def test_runs_that_do_not_record_what_the_gate_asks_contradict_nothing() -> None:
    """Whether FedAvg still learned is not known of them; what holds does so all the same."""
    rows = [{**A, "top1": 50.0}, {**B, "top1": 62.0}]
    finding = found(BETTER, gain(*CLEAR), rows, fall=math.nan)
    assert (finding.verdict, finding.why) == ("open", "its runs do not record the fall of FedAvg's training loss")
    assert found(BETTER, gain(*(-each for each in CLEAR)), fall=math.nan).verdict == "open"
    assert found(BETTER, gain(*CLEAR), fall=math.nan).verdict == "holds"


class TestLooks:
    def test_a_decision_stands_and_seeds_between_looks_wait(self) -> None:
        """Decided by the first three seeds, whatever follows; of four and seven seeds, three and five are looked at."""
        assert found(BETTER, gain(*CLEAR, -50, -50)).verdict == "holds"
        assert found(BETTER, gain(2, 3, 4, 100)).seeds == 3
        assert found(BETTER, gain(2, 3, 4, 2, 3, 100, 100)).seeds == 5
        assert found(BETTER, gain(*[1, -1] * 10)).seeds == 12

    def test_levels_rise(self) -> None:
        """With t at the border of a level, an effect a little larger decides and one a little smaller does not."""
        for seeds, level in LEVELS.items():
            spread = np.array([(-1.0) ** at for at in range(seeds)])
            spread -= spread.mean()
            border = stats.t.ppf(1 - level / 2, seeds - 1) * spread.std(ddof=1) / math.sqrt(seeds)
            verdicts = []
            for share in (0.99, 1.01):
                values = spread + share * border
                late = {at: decide([values[:at]], [0], None)[0] for at in LEVELS if at <= seeds}
                verdicts.append(late[seeds])
                assert set(list(late.values())[:-1]) <= {"open"}
            assert verdicts == ["open", "holds"]

    def test_with_few_seeds_nothing_is_tested(self) -> None:
        finding = found(BETTER, gain(40, 40.1))
        assert (finding.verdict, finding.seeds, finding.needed) == ("open", 2, 3)
        assert math.isnan(finding.p)

    def test_seeds_are_taken_in_ascending_order(self) -> None:
        results = gain(*CLEAR, -50, -50)
        assert found(BETTER, results.iloc[::-1]).verdict == "holds"

    def test_needed_is_told_of_open_claims(self) -> None:
        """0, 1 and 2: one deviation from 0, 13 seeds; half a deviation from half of a paper's 3, 41 seeds."""
        assert found(BETTER, gain(0, 1, 2)).needed == 13
        assert found(BETTER, gain(0, 1, 2), [{**A, "top1": 50.0}, {**B, "top1": 53.0}]).needed == 41
        assert found(BETTER, gain(*CLEAR)).needed == 0
        assert found(BETTER, gain(0, 0.001, -0.001)).needed == 1001
        assert found(Claim("", B, A, by=0.5), gain(0, 1, 2)).needed == 0


class TestChance:
    """200,000 sequences of twelve effects whose mean is 0."""

    VALUES = np.random.default_rng(1).standard_normal((200_000, 12))

    def decided(self) -> Any:
        looks = [stats.ttest_1samp(self.VALUES[:, :seeds], 0, axis=1).pvalue < at for seeds, at in LEVELS.items()]
        return np.any(looks, axis=0)

    def test_decides_as_rarely_as_is_said(self) -> None:
        """The share of 4,000,000 is 4.89 %; that of 200,000 has a standard error of 0.05 %."""
        assert self.decided().mean() == pytest.approx(FALSE, abs=0.001)

    def test_the_verdict_is_this_test(self) -> None:
        """Around 0, and around half of the paper's effect, which is 40 deviations from 0."""
        for values, expected in zip(self.VALUES[:300], self.decided()[:300], strict=True):
            around_zero, around_half = decide([values], [0], None)[0], decide([values + 40], [40], None)[0]
            assert (around_zero in ("holds", "opposite")) == expected
            assert around_half == {"holds": "holds", "opposite": "too small", "open": "open"}[around_zero]


class TestEquality:
    @pytest.mark.parametrize(
        ("differences", "margin", "verdict", "p"),
        [
            # Mean 0, error 0.1/√3, t = 0.5/error, t² = 75: p = 1/2 - √75/(2√77) = 0.0065.
            ([-0.1, 0, 0.1], 0.5, "holds", 0.5 - math.sqrt(75 / 77) / 2),
            # Mean 0, error 1/√3, t² = 0.75. Not different, and not equal either.
            ([-1, 0, 1], 0.5, "open", 0.5 - math.sqrt(0.75 / 2.75) / 2),
            # Mean 3, beyond 0.5 by 2.5: t² = 75, two-sided.
            ([2.5, 3, 3.5], 0.5, "open", 1 - math.sqrt(75 / 77)),
            ([-2.9, -3, -3.1], 0.5, "differs", 1 - math.sqrt(1875 / 1877)),
            # Different from 0 beyond doubt, and equal all the same.
            ([0.1, 0.1, 0.1], 0.5, "holds", 0),
        ],
    )
    def test_verdict(self, differences: list[float], margin: float, verdict: str, p: float) -> None:
        finding = found(Claim("", B, A, by=margin), gain(*differences))
        assert finding.verdict == verdict
        assert finding.p == pytest.approx(min(1, 6 * p), rel=1e-6)


class TestEach:
    """A list on a side: the claim is about every one of them. A - B and A - C are the effects."""

    def finding(self, b: Sequence[float], c: Sequence[float], *paper: float) -> Finding:
        rows = [{"method": name, "top1": 50 - effect} for name, effect in zip("ABC", (0, *paper), strict=False)]
        results = runs({"A": [50] * 3, "B": [50 - each for each in b], "C": [50 - each for each in c]})
        return found(Claim("A leads", A, {"method": ["B", "C"]}), results, rows)

    @pytest.mark.parametrize(
        ("b", "c", "verdict", "compared", "p"),
        [
            (CLEAR, [9, 10, 11], "holds", "A against B", P),  # t² = 300 for C: p = 0.0033
            (CLEAR, [2, 3, 4], "open", "A against C", 1 - math.sqrt(27 / 29)),
            # Of two comparisons 0.0091 counts twice, and 0.0033 is below the half of the level.
            ([9, 9, 9], [-each for each in CLEAR], "open", "A against C", 2 * P),
            ([9, 9, 9], [-9, -10, -11], "opposite", "A against C", 2 * (1 - math.sqrt(300 / 302))),
        ],
    )
    def test_the_weakest_or_one_that_is_opposite(
        self, b: list[float], c: list[float], verdict: str, compared: str, p: float
    ) -> None:
        finding = self.finding(b, c)
        assert (finding.verdict, finding.compared) == (verdict, compared)
        assert finding.p == pytest.approx(min(1, 6 * p), rel=1e-6)

    def test_too_small_if_one_is(self) -> None:
        """Half of 40 is far above B's 3, whatever C's effect; one that is opposite comes first."""
        assert self.finding(CLEAR, [9, 9, 9], 40, 9).compared == "A against B"
        assert self.finding(CLEAR, [9, 9, 9], 40, 9).verdict == "too small"
        assert self.finding(CLEAR, [2, 3, 4], 40, 9).verdict == "too small"
        assert self.finding(CLEAR, [-9, -10, -11], 40, 9).verdict == "opposite"

    def test_the_comparison_that_lacks_runs(self) -> None:
        finding = self.finding([9, 9, 9], [1, 1, math.nan])
        assert (finding.verdict, finding.compared, finding.seeds, finding.effect) == ("open", "A against C", 2, 1)
        assert self.finding([9, 9, 9], []).why == "no seed has runs to compare: A against C"


def test_not_run() -> None:
    """No B; no A at B's alpha; no axis of that name; no run at all."""
    missing = runs({(1, "A"): [0, 0, 0]}, "alpha", "method")
    assert found(BETTER, missing).verdict == "not run"
    assert math.isnan(found(BETTER, missing).effect)
    assert found(BETTER, runs({(1, "A"): [0] * 3, (2, "B"): [0] * 3}, "alpha", "method")).verdict == "not run"
    assert found(Claim("", {"proxy": "even"}, {"proxy": "odd"}), missing).verdict == "not run"
    assert found(BETTER, pd.DataFrame()).why == "no run is finished"


def test_a_claim_that_is_later_than_its_runs_is_not_run() -> None:
    """Results that a release wrote before a measure was claimed lack its column."""
    finding = found(dataclasses.replace(BETTER, measure="later/measure"), gain(*CLEAR).assign(top3=1.0))
    assert (finding.verdict, finding.seeds) == ("not run", 0)


def test_p_values_agree_with_the_closed_form() -> None:
    """1, 2, 3, 6 with three degrees of freedom, where P(T > t) = 1/2 - (arctan(t/√3) + t√3/(3 + t²)) / π.

    Mean 3, deviation √(14/3), error √(7/6), t = 3/√(7/6).
    """
    t, values = 3 / math.sqrt(7 / 6), np.array([1.0, 2, 3, 6])
    p = 0.5 - (math.atan(t / math.sqrt(3)) + t * math.sqrt(3) / (3 + t * t)) / math.pi
    assert p_above(values, 0) == pytest.approx(p)
    for each, verdict in ((values, "holds"), (-values, "opposite")):
        assert p_values([each], [0])[verdict] == pytest.approx((2 * p, 0))
