"""Trains on two devices, which are real processes over gloo, mostly forked from this one to save imports."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from fl_lightning.engine.devices.strategy import ClientParallelStrategy

PATIENCE = timedelta(seconds=20)  # longer than one device waits for the other
HANG = 600  # seconds that only processes that hang take, however busy the machine


def asked_of(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The parameters of the chosen tests that use a fixture of a module."""
    items: list[Any] = [item for item in request.session.items if item.module is request.module]
    return [item.callspec.params for item in items if request.fixturename in item.fixturenames]


def on_two_devices(
    folder: Path, jobs: dict[str, Callable[..., Any]], devices: int = 2, method: str = "fork"
) -> dict[str, list[Any]]:
    """Run jobs, each with a Trainer's flags for two devices, or for more.

    Processes that are spawned, as a GPU needs, import the tests again, and take only jobs that can be pickled.

    Returns:
        For each job, by its name, what it returned on all devices, or an error's text in place of that.
    """
    start = torch.multiprocessing.start_processes
    started: Any = start(_run, (jobs, folder, devices), nprocs=devices, join=False, start_method=method)
    assert any(started.join(HANG) for _ in range(devices))  # join returns when the first has ended, then the next
    return {name: [torch.load(folder / f"{name}.{k}", weights_only=False) for k in range(devices)] for name in jobs}


def _run(rank: int, jobs: dict[str, Callable[..., Any]], folder: Path, devices: int) -> None:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", str(rank))
        for name, job in jobs.items():
            meeting = f"file://{folder / f'{name}.meeting'}"
            try:
                torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=devices, timeout=PATIENCE)
                result = job(strategy=ClientParallelStrategy(), devices=devices)
            except BaseException as error:
                result = f"{type(error).__name__}: {error}"
            finally:
                torch.distributed.destroy_process_group()  # so that the other process, which may wait, fails too
            torch.save(result, folder / f"{name}.{rank}")
