"""Draws are keyed by what they are for, and leave all others alone."""

import random

import numpy as np
import pytest
import torch

from fl_lightning.seeding import derive, generator, isolated, numpy_generator, seed_globals

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    """One number of each global generator."""
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_derived_seeds_are_the_same_in_every_process() -> None:
    """``printf 0:client:1:2 | b2sum -l 32`` prints @A@: read from the right, 0x@B@."""
    assert derive(0, "client", 1, 2) == 0x0
    assert derive(7, "cohort", 3) == 0x0


def test_every_part_of_the_key_counts() -> None:
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 0, 1), (0, "a", 1, 0), (0, "a", 11), (0, "a", -1)]
    seeds = {derive(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_generators_depend_on_the_key_alone() -> None:
    first = torch.rand(4, generator=generator(0, "batches", 1, 2)), numpy_generator(0, "partition").random(4)
    draw()
    seed_globals(5, CPU)
    again = torch.rand(4, generator=generator(0, "batches", 1, 2)), numpy_generator(0, "partition").random(4)
    other = torch.rand(4, generator=generator(0, "batches", 2, 1)), numpy_generator(1, "partition").random(4)
    assert torch.equal(first[0], again[0])
    assert (first[1] == again[1]).all()
    assert not torch.equal(first[0], other[0])
    assert not (first[1] == other[1]).any()


def test_seed_globals_seeds_all_three() -> None:
    with isolated(CPU):
        seed_globals(2**32 - 1, CPU)
        first = draw()
        seed_globals(2**32 - 1, CPU)
        assert draw() == first
        seed_globals(0, CPU)
        assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_isolated_leaves_the_global_generators_as_they_were() -> None:
    with isolated(CPU):
        seed_globals(3, CPU)
        expected = [draw() for _ in range(2)]
        seed_globals(3, CPU)
        assert draw() == expected[0]
        with isolated(CPU):
            seed_globals(99, CPU)
            draw()
        assert draw() == expected[1]


def test_isolated_restores_after_an_error() -> None:
    with isolated(CPU):
        seed_globals(3, CPU)
        expected = draw()
        seed_globals(3, CPU)
        with pytest.raises(ValueError, match="inside"), isolated(CPU):
            draw()
            raise ValueError("inside")
        assert draw() == expected
