"""Choose the number of processes of a run on a CPU: as many as pay, where all code that takes part is the package's."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping
from functools import partial
from math import ceil
from multiprocessing.connection import Connection
from typing import Any

import torch
from joblib import cpu_count  # type: ignore[import-untyped]

from fl_lightning.datamodules import FederatedDataModule, LabelledData
from fl_lightning.engine.orchestrator import FederatedOrchestrator

KNOWN = ("fl_lightning", "torch", "lightning", "timm")  # packages whose classes keep no file open and start no thread
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


def may_be_copied(config: Any, data: FederatedDataModule) -> bool:
    """Tell whether a run may go on in copies of its process, by what its config names.

    A copy shares what its original has opened, and lacks the original's threads. So every class that the config names
    must be the package's, PyTorch's, Lightning's or timm's, and the data one of the package's data modules that keep
    all examples in memory.

    Args:
        config: the config, as plain dicts and lists.
        data: the data module.
    """
    return isinstance(data, LabelledData) and all(path.partition(".")[0] in KNOWN for path in class_paths(config))


def class_paths(config: Any) -> list[str]:
    """Collect all classes that a config names, at any depth."""
    paths: list[str] = []
    if isinstance(config, Mapping):
        named = config.get("class_path")
        if isinstance(named, str):
            paths.append(named)
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            paths += class_paths(value)
    return paths


def choose_processes(model: FederatedOrchestrator, data: FederatedDataModule, rounds: int, most: int) -> int:
    """Return the number of processes, from 1 to ``most``, in which a run is foretold to end first.

    The time of a step on the first batch of the largest client is taken for the time of all steps. A module that does
    not train outside of a run, as with manual optimization, gets one process.

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
    """Return the seconds of a training step on the largest client's first batch; None if it cannot be tried.

    A copy of this process takes the step and is thrown away, so that nothing of it stays.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_time, args=(model, data, sender))
    child.start()
    sender.close()
    try:
        seconds: float | None = receiver.recv()
    except EOFError:  # the step failed; the run itself tells what is wrong
        seconds = None
    child.join()
    return seconds


def _send_time(model: FederatedOrchestrator, data: FederatedDataModule, sender: Connection) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    client = int(data.sizes.argmax())
    taken = []
    module = model.client.train()
    batch = next(iter(data.client_batches(client, torch.Generator().manual_seed(0))))
    batch = data.on_after_batch_transfer(batch, 0)
    for _ in range(REPEATS):
        began = time.perf_counter()
        result: Any = module.training_step(batch, 0)
        loss = result["loss"] if isinstance(result, Mapping) else result
        loss.backward()
        taken.append(time.perf_counter() - began)
    sender.send(min(taken))
