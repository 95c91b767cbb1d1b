"""Tests of the best by validation, and their correction by tables in which the rules' names are shuffled."""

import math

import numpy as np
import pytest

from fl_lightning.report.statistics import two_sided_p
from fl_lightning.reproduce.benchmark import chance
from fl_lightning.reproduce.benchmark.chance import Searches, share_as_small, smallest_p

NAMES = ["FedAvg", "A", "B", "C", "D", "E"]


def drawn(draw: np.random.Generator, searches: int = 4, shared: float = 0.8) -> Searches:
    """Draw a problem in which no rule is better; a search's luck with a rule is in its validation and in its tests."""
    luck, seeds = draw.normal(size=(searches, 6)), draw.normal(size=(2, searches, 6))
    validation, tests = math.sqrt(shared) * luck + math.sqrt(1 - shared) * seeds
    return Searches(NAMES, 50 + tests, 60 + validation)


def test_the_best_three_by_validation_are_tested() -> None:
    """E has no validation, and C's tests have one missing, so that two searches are left."""
    validation = np.array([[90.0, 70, 73, 72, 71, np.nan]] * 3)
    tests = np.array([[50.0, 51, 52, 60, 53, 54], [50, 53, 52, 61, 55, 54], [50, 55, 53, np.nan, 55, 54]])
    searches = Searches(NAMES, tests, validation)
    assert [NAMES[at] for at in searches.candidates()] == ["B", "C", "D"]
    p = searches.p_values()
    assert p[0] == pytest.approx(two_sided_p(np.array([2.0, 2.0, 3.0])))
    assert math.isnan(p[1])
    assert len(p) == 3
    assert p[2] == pytest.approx(two_sided_p(np.array([3.0, 5.0, 5.0])))


def test_too_few_searches_are_never_a_clear_gain() -> None:
    assert math.isnan(share_as_small(math.nan, np.array([0.1, 0.2])))


def test_the_same_difference_in_every_search_is_certain_and_no_difference_is_none() -> None:
    tests = np.array([[50.0, 51, 50, 49, 0, 0]] * 3)
    assert Searches(NAMES, tests, np.array([[0.0, 9, 8, 7, 0, 0]] * 3)).p_values().tolist() == [0.0, 1.0, 0.0]


def test_a_name_takes_validation_and_tests_of_one_method() -> None:
    values = np.arange(24.0).reshape(4, 6)
    mixed = Searches(NAMES, values, 100 + values).shuffled(np.random.default_rng(0), tables=3)
    assert mixed.tests.shape == (3, 4, 6)
    assert np.array_equal(mixed.validation, 100 + mixed.tests)
    for table in mixed.tests:
        assert np.array_equal(np.sort(table, axis=1), values)
        assert not np.array_equal(table, values)
        assert len({tuple(row % 6) for row in table}) == 4, "each search is shuffled by itself"


def test_many_tables_have_the_p_values_of_each() -> None:
    """Also where a rule has no validation, or one search less."""
    problem = drawn(np.random.default_rng(0))
    problem.validation[:, 5], problem.tests[0, 1], problem.validation[1, 2] = np.nan, np.nan, np.nan
    tables = problem.shuffled(np.random.default_rng(1), tables=50)
    each = [Searches(NAMES, *table).p_values() for table in zip(tables.tests, tables.validation, strict=True)]
    np.testing.assert_array_equal(tables.p_values(), each)


def test_where_no_rule_is_better_a_table_has_a_clear_gain_in_five_of_a_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the luck that chooses what is tested is in the tests, too: uncorrected, half of the tables have one."""
    monkeypatch.setattr(chance, "SHUFFLES", 99)
    draw = np.random.default_rng(0)
    plain, corrected = [], []
    for _ in range(400):
        problems = [drawn(draw), drawn(draw), drawn(draw, searches=6)]
        p = min(problem.p_values().min() for problem in problems)
        plain.append(p < 0.05)
        corrected.append(share_as_small(p, smallest_p(problems, draw)) <= 0.05)
    assert np.mean(plain) > 0.3
    assert 0.02 < np.mean(corrected) < 0.08


def test_a_real_gain_is_found() -> None:
    draw = np.random.default_rng(0)
    problem = drawn(draw, searches=6)
    problem.tests[:, 1] += 20
    problem.validation[:, 1] += 20
    assert problem.candidates()[0] == 1
    assert share_as_small(problem.p_values()[0], smallest_p([problem], draw)) < 0.01
