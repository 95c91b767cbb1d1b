"""The columns that devices keep: segments that do not depend on the devices, and shares that join to the whole."""

from itertools import pairwise

import pytest

from fl_lightning.engine.updates.columns import SEGMENTS, UNIT, Columns

SIZES = [1, 100, UNIT, UNIT + 1, 55_210, SEGMENTS * UNIT, SEGMENTS * UNIT + 1, 11_173_962]


@pytest.mark.parametrize("size", SIZES)
def test_segments_are_of_one_width_and_few(size: int) -> None:
    bounds = Columns(size).bounds
    widths = [stop - start for start, stop in pairwise(bounds)]
    assert (bounds[0], bounds[-1]) == (0, size)
    assert len(set(widths[:-1])) <= 1
    assert all(width % UNIT == 0 for width in widths[:-1])
    assert 0 < widths[-1] <= max(widths)
    assert len(widths) <= SEGMENTS


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("devices", [1, 2, 3, 5, 40])
def test_shares_are_whole_segments_and_make_up_the_columns(size: int, devices: int) -> None:
    each = [Columns(size, rank, devices) for rank in range(devices)]
    assert all(columns.bounds == Columns(size).bounds for columns in each)
    columns = [column for part in each for column in (part.own.start, part.own.stop)]
    assert (columns[0], columns[-1]) == (0, size)
    assert columns[1:-1:2] == columns[2::2]
    assert set(columns) <= set(each[0].bounds)
    assert each[0].width == max(part.own.stop - part.own.start for part in each)


def test_twelve_devices_keep_equally_many_of_a_large_model() -> None:
    shares = [Columns(24 * 100 * UNIT, rank, 12).own for rank in range(12)]
    assert {share.stop - share.start for share in shares} == {2 * 100 * UNIT}


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
