"""The algebra of updates against plain matrices; on several devices the bits of one; sums that keep nothing else."""

import socket
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.shares import LEFT_OUT, PARAMETERS, one_device, one_device_with_results, results, sent
from torch import Tensor, multiprocessing

from fl_lightning import ConfigurationError
from fl_lightning.engine.updates.columns import SEGMENTS, UNIT, Columns
from fl_lightning.engine.updates.store import Store
from fl_lightning.engine.updates.updates import Summed, Updates


def of_rows(order: list[int]) -> tuple[Updates, Tensor]:
    """Updates in some rows of a matrix, and the same as a matrix of float64."""
    rows = sent()
    return Updates(rows, Columns(PARAMETERS), order), rows[order].double()


ORDERS = [list(range(7)), [5, 0, 3], [6, 5, 4, 3, 2, 1, 0], [2]]


@pytest.mark.parametrize("order", ORDERS)
def test_algebra(order: list[int]) -> None:
    updates, dense = of_rows(order)
    generator = torch.Generator().manual_seed(1)
    coefficients = torch.randn(len(order), generator=generator, dtype=torch.float64)
    vector = torch.randn(PARAMETERS, generator=generator, dtype=torch.float64)
    mixing = torch.randn(len(order), len(order), generator=generator, dtype=torch.float64)
    assert len(updates) == len(order)
    torch.testing.assert_close(updates.combine(coefficients).double(), coefficients @ dense, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(updates.products(vector), dense @ vector, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(updates.products(vector.float()), dense @ vector, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(updates.norms, dense.norm(dim=1), rtol=1e-12, atol=0)
    torch.testing.assert_close(updates.gram(), dense @ dense.T, rtol=1e-12, atol=1e-9)
    for start, stop in [(0, 10), (8_190, 8_200), (5_000, PARAMETERS)]:
        part = dense[:, start:stop]
        torch.testing.assert_close(updates.gram(start, stop), part @ part.T, rtol=1e-12, atol=1e-9)
    middle = updates.by_coordinate(lambda block: block.median(0).values, None)
    assert torch.equal(middle.double(), dense.median(0).values)
    largest = updates.by_coordinate(lambda block: block.amax(0), mixing).double()
    torch.testing.assert_close(largest, (mixing @ dense).amax(0), rtol=1e-5, atol=1e-5)
    assert torch.equal(torch.stack(list(updates.rows())).double(), dense)
    only = updates.only([place == 0 for place in range(len(order))])
    assert torch.equal(only.whole.double(), dense[:1])


@pytest.mark.parametrize("order", ORDERS)
def test_the_matrix_lies_where_the_rows_lie(order: list[int]) -> None:
    updates, dense = of_rows(order)
    place = updates.own.data_ptr()
    assert torch.equal(updates.whole.double(), dense)
    assert updates.whole.data_ptr() == place
    assert torch.equal(updates.whole.double(), dense)
    assert torch.equal(updates.norms, Updates.of(dense.float()).norms)


@pytest.mark.parametrize("waves", [[7], [3, 4], [1] * 7, [6, 1]])
def test_a_sum_of_updates_as_they_come_has_the_same_bits(waves: list[int]) -> None:
    rows, shares = sent(), torch.tensor([5.0, 1.0, 0.0, 2.0, 7.0, 1.0, 3.0], dtype=torch.float64)
    expected = Updates(rows, Columns(PARAMETERS), range(7), shares).combine(shares / 19)
    summed, first = Summed(Columns(PARAMETERS)), 0
    for count in waves:
        wave = Updates(rows[first : first + count].clone(), Columns(PARAMETERS), range(count))
        summed.take_in(wave, shares[first : first + count])
        first += count
    assert len(summed) == 7
    assert torch.equal(summed.combine(shares / 19), expected)
    assert torch.equal(summed.combine(shares / 19), expected)
    assert not summed.combine(0 * shares).any()
    torch.testing.assert_close(expected, (shares / 19).float() @ rows, rtol=1e-4, atol=1e-5)


def test_a_sum_refuses_other_weights_and_single_updates() -> None:
    summed = Summed(Columns(PARAMETERS))
    summed.take_in(Updates.of(sent(2)), torch.tensor([1.0, 3.0], dtype=torch.float64))
    with pytest.raises(ConfigurationError, match=r"sets the weights \[0.5, 0.5\], but its stream_weights gave others"):
        summed.combine(torch.tensor([0.5, 0.5], dtype=torch.float64))
    looks: list[Any] = [lambda: summed.gram(), lambda: summed.whole, lambda: summed.rows(), lambda: summed.norms]
    for look in looks:
        with pytest.raises(ConfigurationError, match="reads single updates, but updates are summed as they arrive"):
            look()


def test_shares_decide_the_bits_only_of_weights_in_proportion() -> None:
    rows, shares = sent(3), torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    updates = Updates(rows, Columns(PARAMETERS), range(3), shares)
    other = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    assert torch.equal(updates.combine(other), Updates.of(rows).combine(other))
    assert torch.equal(updates.combine(shares / 7), Updates.of(rows).combine(shares / 7))


def test_a_tiny_first_coefficient_is_no_measure() -> None:
    """In units of 1e-40, which float32 hardly has, the others would overflow."""
    rows, coefficients = sent(3), torch.tensor([1e-40, 1.0, 2.0], dtype=torch.float64)
    assert torch.equal(Updates.of(rows).combine(coefficients), rows[1] + 2 * rows[2])
    assert not Updates.of(rows).combine(0 * coefficients).any()


def test_the_first_coefficient_is_the_unit_to_the_last_bit() -> None:
    """As Python's floats divide and multiply; times its reciprocal, 49 is not 1 in float64."""
    rows = sent(2).double()
    for first in (49.0, 0.3, 1 / 49):
        found = Updates.of(rows).combine(torch.tensor([first, 0.7], dtype=torch.float64))
        assert torch.equal(
            found, first * torch.zeros(PARAMETERS).double().add_(rows[0]).add_(rows[1], alpha=0.7 / first)
        )


@pytest.mark.parametrize("waves", [None, [1, 1, 1], [3]])
def test_a_huge_first_update_that_clipping_shortens_leaves_room_for_the_others(waves: list[int] | None) -> None:
    """Clients of 5, 900 and 1 examples, norms clipped to 0.5: NumPy's sum in float64; 900 / (5 · 0.5 / 1e38) is inf."""
    rows = sent(3)
    rows[0] = 1e38
    exact = rows.double().numpy()
    shares = np.array([5, 900, 1]) * np.minimum(1, 0.5 / np.linalg.norm(exact, axis=1))
    weights, combined = torch.from_numpy(shares), Updates(rows, Columns(PARAMETERS), range(3), torch.from_numpy(shares))
    found = combined.combine(weights / 906)
    if waves:
        summed = Summed(Columns(PARAMETERS))
        for part, wave in zip(rows.split(waves), weights.split(waves), strict=True):
            summed.take_in(Updates.of(part.clone()), wave)
        assert torch.equal(summed.combine(weights / 906), found)
    np.testing.assert_allclose(found.numpy(), shares / 906 @ exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("shares", [None, torch.ones(3, dtype=torch.float64)])
def test_a_coefficient_that_is_not_finite_is_not_lost(bad: float, shares: Tensor | None) -> None:
    coefficients = torch.tensor([0.5, bad, 0.5], dtype=torch.float64)
    assert Updates(sent(3), Columns(PARAMETERS), range(3), shares).combine(coefficients).isnan().all()


def test_equal_updates_have_equal_bits_wherever_they_lie() -> None:
    """Rows of an odd length start at any multiple of four bytes; BLAS's products may depend on it."""
    updates = Updates.of(sent(1).repeat(16, 1))
    vector = torch.randn(PARAMETERS, generator=torch.Generator().manual_seed(2))
    assert len(updates.products(vector).unique()) == len(updates.products(vector.double()).unique()) == 1


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_several_devices_give_the_bits_of_one(tmp_path: Path) -> None:
    rows, order = sent(), [row for row in range(7) if row != LEFT_OUT]
    expected = results(Updates(rows, Columns(PARAMETERS), order))
    multiprocessing.start_processes(one_device, (3, free_port(), str(tmp_path)), 3, start_method="fork")
    for rank in range(3):
        for found, wanted in zip(torch.load(tmp_path / f"3_{rank}.pt"), expected, strict=True):
            assert torch.equal(found, wanted)


def test_results_of_all_devices_come_to_each() -> None:
    """One at a time, so that a device goes on when the other has no more."""
    multiprocessing.start_processes(one_device_with_results, (2, free_port(), 1), 2, start_method="fork")


def test_what_is_not_finite_is_told(tmp_path: Path) -> None:
    rows, anchor = sent(4), torch.zeros(PARAMETERS)
    rows[1, -1], rows[3, 0] = torch.inf, torch.nan
    store = Store(anchor, 0, 1, slots=4, limit=1 << 30, folder=tmp_path)
    assert store.put([10, 11], rows[:2], anchor).isnan().tolist() == [False, True]
    assert [bool(store.put([client], rows[[client - 10]], anchor).isnan()) for client in (12, 13)] == [False, True]
    assert [store.is_finite(client) for client in (10, 11, 12, 13)] == [True, False, True, False]


@pytest.mark.parametrize("together", [1, 2])
def test_the_sum_of_an_update_may_overflow(together: int, tmp_path: Path) -> None:
    """1e38 · 20,011 is more than float32 holds: the sign is nan, and a look at the entries decides."""
    models, anchor = torch.full((together, PARAMETERS), 1e38), torch.zeros(PARAMETERS)
    store = Store(anchor, 0, 1, slots=together, limit=1 << 30, folder=tmp_path)
    assert store.put(range(together), models, anchor).isnan().all()
    assert all(map(store.is_finite, range(together)))


SIZES = [1, 100, UNIT, UNIT + 1, 55_210, SEGMENTS * UNIT, SEGMENTS * UNIT + 1, 11_173_962]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("devices", [1, 2, 3, 5, 40])
def test_shares_are_whole_segments_and_make_up_the_columns(size: int, devices: int) -> None:
    """Segments of one width, few, and the same for any number of devices."""
    *widths, last = (stop - start for start, stop in pairwise(Columns(size).bounds))
    assert len({*widths}) <= 1
    assert all(width % UNIT == 0 and width >= last for width in widths)
    assert len(widths) < SEGMENTS
    each = [Columns(size, rank, devices) for rank in range(devices)]
    assert all(columns.bounds == Columns(size).bounds for columns in each)
    columns = [column for part in each for column in (part.own.start, part.own.stop)]
    assert (columns[0], columns[-1]) == (0, size)
    assert columns[1:-1:2] == columns[2::2]
    assert set(columns) <= set(each[0].bounds)
    assert each[0].width == max(part.own.stop - part.own.start for part in each)


@pytest.mark.parametrize(("start", "stop"), [(0, 55_210), (0, 1), (8_000, 8_500), (30_000, 30_000), (55_209, 55_210)])
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_cut_segments_hold_each_column_once(start: int, stop: int, devices: int) -> None:
    found = []
    for rank in range(devices):
        columns = Columns(55_210, rank, devices)
        cut = columns.segments(start, stop)
        assert len(cut) == sum(columns.own.start <= bound < columns.own.stop for bound in columns.bounds)
        found += [columns.own.start + column for each in cut for column in range(each.start, each.stop)]
    assert found == list(range(start, stop))
