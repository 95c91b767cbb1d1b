"""Cohort: the Gram matrix, the update, changes without recomputing, by hand; and who is in it."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from lib.toy import UPDATES, GivenData, Linear, close, send, trainer
from torch import Tensor

import fl_lightning.engine.updates.updates
from fl_lightning import Cohort, ConfigurationError, FederatedOrchestrator
from fl_lightning.engine.updates.cohort import ClientResult

ANCHOR = torch.tensor([10.0, -10.0], dtype=torch.float64)
MIXING = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 2.0]], dtype=torch.float64)


def collect(deltas: Any = UPDATES, samples: tuple[int, ...] = (1, 1, 2), **fields: list[Any]) -> Cohort:
    """A cohort of clients 0, 1, … with the given fields of ClientResult, one value a client."""
    rows = torch.as_tensor(deltas, dtype=torch.float64)
    plain = {"num_steps": 1, "loss": 1.0, "normalizer": 1.0, "buffers": [], "metrics": {}, "reductions": {}}
    results = [
        ClientResult(k, n, **{name: fields[name][k] if name in fields else value for name, value in plain.items()})
        for k, n in zip(range(len(rows)), samples, strict=True)
    ]
    return Cohort.collect(3, ANCHOR, rows, results)


def test_collects_what_came() -> None:
    cohort = collect(loss=[0.5, 1.0, 2.0], num_steps=[4, 5, 6], normalizer=[2.9, 5.61, 1.0])
    assert (cohort.round, cohort.clients) == (3, (0, 1, 2))
    assert close(cohort.weights, (0.25, 0.25, 0.5), 0.0)
    assert torch.equal(cohort.mixing, torch.eye(3, dtype=torch.float64))
    assert close(cohort.losses, (0.5, 1.0, 2.0), 0.0)
    assert close(cohort.normalizers, (2.9, 5.61, 1.0), 0.0)
    assert (cohort.num_samples.tolist(), cohort.num_steps.tolist()) == ([1, 1, 2], [4, 5, 6])


def test_metrics_are_averaged_over_the_clients_that_logged_them() -> None:
    """Loss (0.5 + 1 + 2·2)/4; a: clients 0 and 2 with n = 1, 2: (3 + 2·6)/3; b: client 1 alone."""
    cohort = collect(loss=[0.5, 1.0, 2.0], metrics=[{"a": 3.0}, {"b": 7.0}, {"a": 6.0}])
    assert cohort.metrics == pytest.approx({"train/loss": 1.375, "a": 5.0, "b": 7.0})


def test_a_metric_that_a_client_does_not_have_is_left_out() -> None:
    """NumPy's means without nan. a: (3 + 2·6)/3; the largest b: 7; no client has c."""
    rows = [{"a": 3.0, "b": 2.0, "c": math.nan}, {"a": math.nan, "b": 7.0, "c": math.nan}, {"a": 6.0, "b": math.nan}]
    found = collect(metrics=rows, reductions=[{"b": "max"}] * 3).metrics
    known = np.ma.masked_invalid([row["a"] for row in rows])
    assert found["a"] == pytest.approx(np.ma.average(known, weights=[1, 1, 2])) == 5.0
    assert found["b"] == np.nanmax([row["b"] for row in rows])
    assert math.isnan(found["c"])


@pytest.mark.parametrize("tile", [(1, 1), (2, 7), (3, 20), (5, 50), (16, 64)])
def test_gram_over_tiles(tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fl_lightning.engine.updates.updates, "TILE", tile)
    deltas = torch.randn(5, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = [[sum(float(a * b) for a, b in zip(p, q, strict=True)) for q in deltas] for p in deltas]
    assert close(collect(deltas, (1,) * 5).gram, expected, 1e-12)


def test_gram_of_float32_updates_accumulates_in_float64() -> None:
    """(10⁴, 1, -10⁴)·(10⁴, 1, 10⁴) = 1, which float32 loses beside 10⁸."""
    deltas = torch.tensor([[1e4, 1.0, -1e4], [1e4, 1.0, 1e4]])
    results = [ClientResult(k, 1, 1, 1.0, 1.0, [], {}) for k in range(2)]
    cohort = Cohort.collect(1, torch.zeros(3), deltas, results)
    assert cohort.gram.dtype == torch.float64
    assert cohort.gram.tolist() == [[2e8 + 1, 1.0], [1.0, 2e8 + 1]]
    assert cohort.update.dtype == torch.float32


def test_update() -> None:
    """Weights @ mixing = (1/4, 1/8 + 1/4 + 1/4, 1) = (0.25, 0.625, 1): 0.5 - 0.625 - 1, 0.625 - 2."""
    assert close(collect().update, (-0.25, -0.75), 0.0)
    assert close(collect().replace(mixing=MIXING).update, (-1.125, -1.375), 0.0)


def test_shrinking() -> None:
    """γ·(w + s) - w with γ = 0.9, w = (10, -10), s = (-0.25, -0.75): (8.775 - 10, -9.675 + 10)."""
    assert close(collect().replace(shrinking=0.9).update, (-1.225, 0.325), 1e-14)
    assert torch.equal(collect().replace(shrinking=1.0).update, collect().update)


def test_corrected_gram() -> None:
    """Rows (1.5, 0.5), (-1, 1), (-2.5, -3.5) of mixing @ deltas."""
    rows = torch.tensor([[1.5, 0.5], [-1.0, 1.0], [-2.5, -3.5]], dtype=torch.float64)
    cohort = collect().replace(mixing=MIXING)
    assert close(cohort.mixing @ cohort.deltas, rows, 0.0)
    assert close(cohort.corrected_gram, rows @ rows.T, 1e-12)


def test_corrected_gram_of_a_cancelled_update_is_zero() -> None:
    """Row 0 becomes g₁ - 3 g₂ = 0 for g₁ = 3 g₂; what rounding leaves of it, -6e-16, must not be a direction."""
    deltas = torch.tensor([[0.3, 2.1], [0.1, 0.7], [3.0, -1.0]], dtype=torch.float64)
    mixing = torch.tensor([[1.0, -3.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    gram = collect(deltas).replace(mixing=mixing).corrected_gram
    assert not gram[0].any()
    assert not gram[:, 0].any()


def test_scaled_and_corrected_apply_to_the_corrections_before_them() -> None:
    cohort = collect().replace(mixing=MIXING)
    factors = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    swap = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert close(cohort.scaled(factors).mixing, [[1, 0.5, 0], [0, 2, 0], [0, 1.5, 6]], 0.0)
    assert close(cohort.corrected(swap).mixing, [[0, 1, 0], [1, 0.5, 0], [0, 0.5, 2]], 0.0)
    assert close(cohort.uniform().weights, (1 / 3, 1 / 3, 1 / 3), 0.0)
    assert torch.equal(cohort.mixing, MIXING)


def changed(cohort: Cohort) -> list[Cohort]:
    ones: Tensor = torch.ones(3, dtype=torch.float64)
    return [cohort.uniform(), cohort.scaled(ones), cohort.corrected(MIXING), cohort.replace(shrinking=0.5)]


def test_columns_are_those_of_the_corrected_updates() -> None:
    """Any of them, in the order asked for, in float64; the second client's are doubled."""
    deltas = torch.arange(20_000, dtype=torch.float32) * torch.tensor([[1.0], [3.0]])
    results = [ClientResult(k, 1, 1, 0.0, 1.0) for k in range(2)]
    cohort = Cohort.collect(1, torch.zeros(20_000), deltas, results).scaled(torch.tensor([1.0, 2.0]).double())
    found = cohort.columns(torch.tensor([19_999, 0, 8192, 8191]))
    assert found.dtype == torch.float64
    assert found.tolist() == [[19_999.0, 0.0, 8192.0, 8191.0], [6 * 19_999.0, 0.0, 6 * 8192.0, 6 * 8191.0]]


def test_replace_keeps_the_computed_gram() -> None:
    cohort = collect()
    gram = cohort.gram
    for other in changed(cohort):
        assert other.gram is gram


def test_replace_computes_the_gram_of_other_updates() -> None:
    cohort = collect()
    assert close(cohort.gram, [[4, -2, -2], [-2, 2, -1], [-2, -1, 5]], 0.0)
    assert close(cohort.replace(deltas=2 * cohort.deltas).gram, [[16, -8, -8], [-8, 8, -4], [-8, -4, 20]], 0.0)


# Who is in it


def rounds_of(count: int, number: int, **data: Any) -> list[list[int]]:
    """The cohorts of ``number`` rounds, of ``count`` clients."""
    given = GivenData(torch.ones(count, 2, dtype=torch.float64), **data)
    return [given.cohort(round) for round in range(1, number + 1)]


def test_a_client_without_data_is_never_drawn() -> None:
    """Of five clients, two have no data: a cohort of four is the other three, one of two is drawn from them."""
    samples = [1, 0, 2, 0, 3]
    assert rounds_of(5, 3, samples=samples, participation=4) == [[0, 2, 4]] * 3
    drawn = rounds_of(5, 12, samples=samples, participation=2)
    assert {client for cohort in drawn for client in cohort} == {0, 2, 4}
    assert all(len(cohort) == 2 for cohort in drawn)


@pytest.mark.parametrize(("participation", "size"), [(0.5, 5), (0.25, 2), (0.01, 1), (3, 3), (1, 1), (1.0, 10)])
def test_participation_is_a_share_or_a_number(participation: float, size: int) -> None:
    """Of ten clients; 2.5 rounds to the even 2, a tenth of a client to one."""
    assert [len(cohort) for cohort in rounds_of(10, 2, participation=participation)] == [size] * 2


def test_cohorts_depend_on_the_seed_alone() -> None:
    first = rounds_of(10, 6, participation=3)
    assert first == rounds_of(10, 6, participation=3)
    assert all(cohort == sorted(cohort) for cohort in first)
    assert first != rounds_of(10, 6, participation=3, seed=1)
    assert len({tuple(cohort) for cohort in first}) > 1
    assert all(len(set(cohort)) == 3 for cohort in first)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"participation": 0}, "participation"),
        ({"participation": 1.5}, "participation"),
        ({"participation": 6}, "participation asks for 6 clients per round, but there are 5"),
        ({"samples": [0] * 5}, "none of the 5 clients has data"),
    ],
)
def test_impossible_cohorts_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        rounds_of(5, 1, **settings)


def test_partial_participation_averages_over_the_cohort() -> None:
    """Three clients of n = 1, 2, 3 send (1, 0), (0, 1), (1, 1); two of them take part."""
    updates, samples = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64), torch.tensor([1, 2, 3])
    model, capture = send(updates, samples=samples.tolist(), participation=2)
    cohort = list(capture.cohort.clients)
    assert len(cohort) == 2
    assert close(model, (samples[cohort, None] * updates[cohort]).sum(0) / samples[cohort].sum())


@pytest.mark.parametrize("size", [2, 9])
def test_clients_per_batch_change_nothing(size: int) -> None:
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    models = []
    for clients_per_batch in (1, size):
        orchestrator = FederatedOrchestrator(Linear(4, lr=0.1, momentum=0.9))
        data = GivenData(rows, samples=[3, 1, 4, 1, 5], steps=[1, 2, 3, 4, 5], clients_per_batch=clients_per_batch)
        trainer(rounds=3).fit(orchestrator, datamodule=data)
        models.append(orchestrator.params)
    assert torch.equal(*models)


def test_updates_are_no_matrix() -> None:
    cohort = collect()
    with pytest.raises(AttributeError, match=r"has no mean: the updates as a matrix .* are cohort.deltas"):
        cohort.updates.mean(dim=0)
    with pytest.raises(ConfigurationError, match=r"got a Tensor: give a matrix \(K, P\) of updates as deltas="):
        cohort.replace(updates=2 * cohort.deltas)
    assert close(cohort.replace(deltas=2 * cohort.deltas).update, 2 * cohort.update, 0.0)
