"""Random draws keyed by their purpose, so that they do not disturb one another.

A draw depends on ``(seed, purpose, indices)`` alone: not on the number of devices or workers, not on earlier draws, not
on whether the run was stopped and resumed.
"""

import hashlib
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def derive(seed: int, purpose: str, *indices: int) -> int:
    """Derive a 32-bit seed for one purpose; the indices are usually the round and the client.

    (``hash()`` of a tuple with strings differs between processes, and torch's CPU generator uses 32 bits of a seed.)
    """
    key = ":".join([str(seed), purpose, *map(str, indices)])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "little")


def generator(seed: int, purpose: str, *indices: int) -> torch.Generator:
    """Make a CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, purpose, *indices))


def numpy_generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Make a NumPy generator for one purpose."""
    return np.random.default_rng(derive(seed, purpose, *indices))


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Restore the global generators of torch (CPU and ``device``), NumPy and Python at the end of a ``with`` block.

    Inside the block, a client hook may let the module draw, as dropout does, and leave the client's own draws as they
    are.

    Args:
        device: the device that trains, as in ``orchestrator.device``.
    """
    states = global_states(device)
    try:
        yield
    finally:
        set_global_states(states, device)


def global_states(device: torch.device) -> tuple[Any, ...]:
    """Return the states of the global generators of torch (CPU and ``device``), NumPy and Python."""
    of_device = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
    return torch.get_rng_state(), np.random.get_state(), random.getstate(), of_device


def set_global_states(states: tuple[Any, ...], device: torch.device) -> None:
    """Set the states that :func:`global_states` has returned."""
    of_torch, of_numpy, of_python, of_device = states
    torch.set_rng_state(of_torch)
    np.random.set_state(of_numpy)
    random.setstate(of_python)
    if of_device is not None:
        torch.get_device_module(device).set_rng_state(of_device, device)


def seed_globals(seed: int, device: torch.device) -> None:
    """Seed the global generators of torch (CPU and ``device``), NumPy and Python (dropout, augmentation).

    Args:
        seed: a number of 32 bits.
        device: the device that trains.
    """
    # Not torch.manual_seed, which formats a stack trace for lazy CUDA and takes 1000 times as long
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def torch_state(device: torch.device) -> bytes:
    """Return the states of torch's global generators (CPU and ``device``) in a form that can be compared."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device).cpu())
    return b"".join(state.numpy().tobytes() for state in states)


def all_states(device: torch.device) -> bytes:
    """Return the states of all global generators, as :func:`torch_state`: also NumPy's and Python's."""
    return torch_state(device) + pickle.dumps((np.random.get_state(), random.getstate()))


def others_drawn(seed: int) -> bool:
    """Tell whether NumPy's or Python's global generator has drawn since :func:`seed_globals`; seed both again."""
    now = (random.random(), np.random.random_sample())
    np.random.seed(seed)
    random.seed(seed)
    return now != (random.random(), np.random.random_sample())
