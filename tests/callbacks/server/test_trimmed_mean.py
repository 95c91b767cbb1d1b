"""Trimmed means of three to five values, by hand, and their properties."""

from typing import Any

import pytest
import torch
from toy import UPDATES, close, send

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import FedAvg, FedNova, TrimmedMean
from fl_lightning.callbacks.server.trimmed_mean import trimmed_mean
from fl_lightning.engine.updates import updates as shared

FIVE = [[1.0, -50.0], [7.0, 2.0], [2.0, 0.0], [90.0, 1.0], [3.0, 9.0]]


@pytest.mark.parametrize(
    ("ratio", "model"),
    [(0.0, (20.6, -7.6)), (0.19, (20.6, -7.6)), (0.2, (4.0, 1.0)), (0.39, (4.0, 1.0)), (0.4, (3.0, 1.0))],
)
def test_five_updates(ratio: float, model: Any) -> None:
    """Ordered: 1, 2, 3, 7, 90 and -50, 0, 1, 2, 9. None dropped: 103/5, -38/5. One: 12/3, 3/3. Two: 3, 1.

    n_k does not count.
    """
    assert close(send(FIVE, TrimmedMean(ratio), samples=[9, 1, 4, 2, 2])[0], model)


def test_the_share_is_not_rounded_down_by_floating_point() -> None:
    """0.29 · 100 = 28.999999999999996: of 29 values 1 and 71 values 0, all of the 1s are dropped."""
    values = torch.zeros(100, 1)
    values[:29] = 1
    assert 0.29 * 100 < 29
    assert close(send(values, TrimmedMean(0.29), clients_per_batch=100)[0], [0.0], 0.0)


@pytest.mark.parametrize("shape", [(1, 3), (4, 1), (4, 3)])
def test_the_updates_stay_as_they_are(shape: tuple[int, int]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    before = values.clone()
    trimmed_mean(values, (len(values) - 1) // 2)
    assert torch.equal(values, before)


def test_something_is_always_left() -> None:
    """Of two values both, of one itself."""
    assert close(send(UPDATES[:2], TrimmedMean(0.4999999999999))[0], (0.5, 0.5))
    assert close(send(UPDATES[:1], TrimmedMean(0.4))[0], UPDATES[0])


def test_nothing_trimmed_is_the_uniform_mean() -> None:
    assert close(send(UPDATES, TrimmedMean(0.3))[0], send(UPDATES, FedAvg("uniform"))[0])


def test_it_follows_rules_before_it() -> None:
    """FedNova with steps (1, 2, 3) and weights 1/3: τ_eff = 2 scales (2, 4, 9) to (4, 4, 6): the median is 4, not 4.5.

    The second coordinate, (3, 4, 3), becomes (6, 4, 2).
    """
    assert close(send([[2.0, 3.0], [4.0, 4.0], [9.0, 3.0]], FedNova(), TrimmedMean(0.4), steps=[1, 2, 3])[0], (4, 4))


def test_long_updates_go_through_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven coordinates in blocks of three; each is on its own: the mean of its middle three values."""
    updates = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = send(updates, TrimmedMean(0.2))[0]
    monkeypatch.setattr(shared, "COLUMNS", 3)
    assert close(send(updates, TrimmedMean(0.2))[0], whole, 0.0)
    assert close(whole, [sum(sorted(column)[1:4]) / 3 for column in updates.T.tolist()])


def test_one_client_cannot_move_it_out_of_the_others_range() -> None:
    """Five clients, one dropped at either end; the third sends anything."""
    honest = torch.rand(4, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for sent in (-1e9, 0.5, 1e9):
        updates = torch.cat([honest[:2], torch.full((1, 20), sent, dtype=torch.float64), honest[2:]])
        step = trimmed_mean(updates, 1)
        assert (step >= honest.min(0).values).all()
        assert (step <= honest.max(0).values).all()


def test_zero_updates_move_nothing() -> None:
    assert close(send(torch.zeros(3, 2), TrimmedMean(0.4))[0], (0.0, 0.0), 0.0)


@pytest.mark.parametrize("ratio", [-0.1, 0.5, float("nan")])
def test_bad_arguments_are_refused(ratio: float) -> None:
    with pytest.raises(ConfigurationError, match=r"ratio must be in \[0, 0.5\), got"):
        TrimmedMean(ratio)
