"""Measure memory, storage and time of a run with many clients, when a rule keeps a tensor of the model's size for each.

SCAFFOLD trains the two-layer CNN (1.2 million parameters, 4.9 MB per client) on clients of eight random 3×32×32 images,
made when a client is drawn. Control variates are kept on disk in one run and in memory in another; each run has a
process of its own and writes a checkpoint after every round.

    python -m benchmarks.clients [num_clients] [cohort] [rounds]

A second part measures what the states cost once every client has taken part: setting, adding up the bytes,
checkpoint and resume.
"""

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from benchmarks.common import Clock, bare_trainer, quiet
from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import Scaffold
from fl_lightning.engine.states.disk import DiskState, client_bytes
from fl_lightning.models import ImageClassifier, TwoLayerCNN
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

SAMPLES = 8


class Synthetic(FederatedDataModule):
    """Clients of eight random images each, made on request; the number of images is known without making them."""

    def __init__(self, num_clients: int, cohort: int) -> None:
        super().__init__(batch_size=SAMPLES, participation=cohort)
        self.num_clients = num_clients

    def client_dataset(self, client: int) -> Dataset[Any]:
        draw = torch.Generator().manual_seed(client)
        return TensorDataset(
            torch.randn(SAMPLES, 3, 32, 32, generator=draw), torch.randint(10, (SAMPLES,), generator=draw)
        )

    def client_num_samples(self, client: int) -> int:
        return SAMPLES


def train(states: Any, num_clients: int, cohort: int, rounds: int) -> None:
    """Train one run and print its memory, the size of its store and checkpoint, and the time per round."""
    quiet()
    clock, rule = Clock(), Scaffold()
    orchestrator = FederatedOrchestrator(ImageClassifier(TwoLayerCNN()), client_states=states)
    with tempfile.TemporaryDirectory() as folder:
        trainer = bare_trainer(
            rounds, rule, clock, LastCheckpoint(), enable_checkpointing=True, default_root_dir=folder
        )
        before = peak()
        trainer.fit(orchestrator, datamodule=Synthetic(num_clients, cohort))
        checkpoint = (Path(folder) / "checkpoints/last.ckpt").stat().st_size
        store = sum(path.stat().st_size for path in Path(folder).rglob("states/**/*") if path.is_file())
    clients = sum("/" in name for name in rule.state)
    print(
        f"  {states:6}: peak memory {peak() / 1e9:.2f} GB ({before / 1e9:.2f} before), {clients} clients' states of "
        f"{client_bytes(rule.state) / 1e9:.2f} GB, store {store / 1e9:.2f} GB, checkpoint {checkpoint / 1e6:.1f} MB, "
        f"seconds per round {' '.join(f'{s:.1f}' for s in clock.seconds)}"
    )


def keep(states: Any, num_clients: int) -> None:
    """Time the bookkeeping of states when every client has one: ten numbers each, so that the disk hardly counts."""
    quiet()
    state: Any = DiskState(writes=True) if states == "disk" else {}
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(state, DiskState):
            state.open(Path(folder), lambda: 1)

        def fill() -> None:
            for client in range(num_clients):
                state[f"c/{client}"] = torch.zeros(10)

        def saved() -> dict[str, Any]:
            return state.state_dict() if isinstance(state, DiskState) else dict(state)

        file = Path(folder) / "checkpoint.ckpt"
        times = {
            "set": clocked(fill),
            "sum of bytes": clocked(lambda: client_bytes(state)),
            "checkpoint": clocked(lambda: torch.save(saved(), file)),
        }
        size, loaded = file.stat().st_size, dict[str, Any]()
        times["load"] = clocked(lambda: loaded.update(torch.load(file, weights_only=True)))
        if isinstance(state, DiskState):
            again = DiskState(writes=True)
            again.load_state_dict(loaded)
            times["open"] = clocked(lambda: again.open(Path(folder), lambda: 1))
        print(f"  {states:6}: {', '.join(f'{n} {s:.3f} s' for n, s in times.items())}; checkpoint {size / 1e6:.1f} MB")


def clocked(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak() -> int:
    """Peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def apart(work: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a process of its own, so that its memory is measured alone."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()


if __name__ == "__main__":
    num_clients, cohort, rounds = (int(a) for a in (*sys.argv[1:], *("100000", "100", "5")[len(sys.argv) - 1 :]))
    print(f"{num_clients} clients, {cohort} a round, {rounds} rounds")
    for states in ("disk", "memory"):
        apart(train, states, num_clients, cohort, rounds)
    print(f"the entries of {num_clients} clients")
    for states in ("disk", "memory"):
        apart(keep, states, num_clients)
    data = Synthetic(num_clients, cohort)
    times = clocked(lambda: data.sizes), clocked(lambda: data.cohort(1))
    print(f"  their sizes, once: {times[0]:.3f} s; a cohort: {times[1]:.3f} s")
