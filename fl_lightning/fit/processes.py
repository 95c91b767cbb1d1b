"""Choose the number of processes of a run on a CPU: as many as pay."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from math import ceil
from typing import Any

import torch
from joblib import cpu_count  # type: ignore[import-untyped]

from fl_lightning.datamodules import FederatedDataModule
from fl_lightning.engine.federation.batches import CPU
from fl_lightning.engine.orchestrator import FederatedOrchestrator
from fl_lightning.seeding import isolated

# Measured on two cores; a few tenths more or less of each change no choice that matters.
START_S = 0.5  # seconds until forked processes have met
ROUND_S = 0.05  # most seconds that meeting takes in a round: of two processes that met after each of 20 clients
BYTES_PER_S = 2e9  # of updates that a process on the same machine exchanges by gloo
LEAST_GAIN = 0.9  # largest share of the time of fewer processes at which more processes pay
REPEATS = 3


def count_cores(threads: int) -> int:
    """Return the number of processes with ``threads`` threads each that the cores of this process carry.

    Counted are the cores that affinity, cgroup and SLURM leave to this process.
    """
    cores = int(cpu_count())
    own = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if own.isdigit():
        cores = min(cores, int(own))
    return max(1, cores // threads)


def choose_processes(model: FederatedOrchestrator, data: FederatedDataModule, rounds: int, most: int) -> int:
    """Return the number of processes, from 1 to ``most``, in which a run is foretold to end first.

    A step of the client module is timed on a copy, on the first batch of the first client, and is taken for the time of
    all steps. A module that does not train outside of a run, as with manual optimization, gets one process.

    Args:
        model: the orchestrator.
        data: its data module, set up.
        rounds: number of rounds to train.
        most: largest number of processes.
    """
    cohort = data.cohort_size
    most = min(most, cohort)
    step = time_step(model, data) if most > 1 else None
    if step is None:
        return 1
    sizes = data.sizes[data.sizes > 0].tolist()
    works = [model.settings.work(batches=partial(range, data.num_batches(size))) for size in sizes]
    steps = sum(work.total_batches for work in works) / len(works)
    updates = cohort * sum(4 * parameter.numel() for parameter in model.client.parameters() if parameter.requires_grad)
    best, least = 1, step * steps * cohort
    for processes in range(2, most + 1):
        own_clients = ceil(cohort / processes)
        exchange = ROUND_S + updates / processes / BYTES_PER_S
        seconds = START_S / rounds + exchange + step * steps * own_clients
        if seconds < LEAST_GAIN * least:
            best, least = processes, seconds
    return best


def time_step(model: FederatedOrchestrator, data: FederatedDataModule) -> float | None:
    """Return the seconds of a training step on the first client's first batch; None if it cannot be tried."""
    client = int(data.sizes.argmax())
    taken = []
    try:
        with isolated(CPU), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metrics that are logged without a Trainer
            module = deepcopy(model.client).train()
            batch = next(iter(data.client_batches(client, torch.Generator().manual_seed(0))))
            batch = data.on_after_batch_transfer(batch, 0)
            for _ in range(REPEATS):
                began = time.perf_counter()
                result: Any = module.training_step(batch, 0)
                loss = result["loss"] if isinstance(result, Mapping) else result
                loss.backward()
                taken.append(time.perf_counter() - began)
    except Exception:  # of a module that needs its Trainer; the run itself tells what is wrong
        return None
    return min(taken)
