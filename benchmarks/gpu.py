"""Compare rounds on a GPU with a loop written by hand, and their results with the CPU's; it downloads nothing.

Clients hold 256 random examples each; batches have 64. The *plain loop* holds all data on the GPU, gathers each
client's examples once a round and averages the models there. *Busy* is the share of a round in which the GPU computes.
No case begins after eight minutes; those that are left are named.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import Clock, RandomClients, bare_trainer, quiet
from benchmarks.local import LEARNING_RATE, Module
from benchmarks.rows import Row, duration
from fl_lightning import FederatedOrchestrator
from fl_lightning.engine.devices.strategy import finish_work
from fl_lightning.models import CifarResNet, LeNet, SimpleCNN, TimmNetwork, TwoNN

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "2NN": (TwoNN, (784,)),
    "LeNet": (LeNet, (3, 32, 32)),
    "SimpleCNN": (SimpleCNN, (3, 32, 32)),
    "ResNet-20": (lambda: CifarResNet(20), (3, 32, 32)),
    "ResNet-18": (lambda: TimmNetwork("resnet18"), (3, 32, 32)),
}
PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
AT_ONCE = ("2NN", "LeNet")  # networks that train in stacks, too: others have running statistics, or are large
SAMPLES, BATCH, LIMIT = 256, 64, 480.0
ROUNDS = 5


def device() -> torch.device | None:
    """The GPU, or None."""
    return torch.device("cuda") if torch.cuda.is_available() else None


def rows(quick: bool, install: bool) -> Iterator[Row]:
    where = device()
    if where is None:
        yield Row("gpu", "any network", "rounds on a GPU", note="no GPU here")
        return
    quiet()
    began = time.perf_counter()
    for name in NETWORKS:
        yield _distance(name, where)
    for clients in (20,) if quick else (20, 100):
        for precision in PRECISIONS:
            for name in NETWORKS:
                case = f"{name}, {clients} clients, {precision}"
                if time.perf_counter() - began > LIMIT:
                    yield Row("gpu", case, "ours ÷ plain loop", note="no time was left")
                    continue
                yield from _times(case, name, clients, precision, where)
    yield from _two_processes(where)


def seconds(name: str, clients: int, precision: str, where: torch.device, **settings: Any) -> float:
    """Median seconds of the rounds after the first two of a run."""
    make, shape = NETWORKS[name]
    clock, data = Clock(), RandomClients(clients, SAMPLES, shape, batch_size=BATCH, clients_per_batch=clients)
    trainer = bare_trainer(ROUNDS, clock, accelerator=accelerator(where), devices=1, precision=precision)
    trainer.fit(FederatedOrchestrator(Module(make()), **settings), datamodule=data)
    return median(clock.seconds[2:])


def accelerator(where: torch.device) -> str:
    """Lightning's name of a device's kind."""
    return {"cpu": "cpu", "cuda": "cuda", "mps": "mps"}[where.type]


def plain(name: str, clients: int, precision: str, where: torch.device) -> list[float]:
    """Train rounds by hand on a device; seconds of each."""
    make, shape = NETWORKS[name]
    data = RandomClients(clients, SAMPLES, shape, batch_size=BATCH)
    inputs, classes, network = data.inputs.to(where), data.classes.to(where), make().to(where)
    dtype, taken = PRECISIONS[precision], []
    parameters = list(network.parameters())
    for _ in range(ROUNDS):
        start = time.perf_counter()
        before = [parameter.detach().clone() for parameter in parameters]
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for client in range(clients):
            with torch.no_grad():
                torch._foreach_copy_(parameters, before)
            optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
            scaler = torch.amp.GradScaler(where.type, enabled=dtype is torch.float16)  # type: ignore[attr-defined]
            order = torch.randperm(SAMPLES).to(where)
            batches = zip(inputs[client][order].split(BATCH), classes[client][order].split(BATCH), strict=True)
            for x, y in batches:
                optimizer.zero_grad()
                with torch.autocast(where.type, dtype) if dtype else nullcontext():
                    loss = F.cross_entropy(network(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            with torch.no_grad():
                torch._foreach_add_(total, parameters, alpha=1 / clients)
        with torch.no_grad():
            torch._foreach_copy_(parameters, total)
        finish_work(where)
        taken.append(time.perf_counter() - start)
    return taken


def _times(case: str, name: str, clients: int, precision: str, where: torch.device) -> Iterator[Row]:
    by_hand = median(plain(name, clients, precision, where)[2:])
    ways: dict[str, dict[str, Any]] = {"ours": {}}
    if precision == "32-true" and name in AT_ONCE:
        at_once = {"clients_at_once": clients}
        ways |= {
            "ours at once": {**at_once, "compile_clients": False},
            "compiled": {**at_once, "compile_clients": True},
        }
    for way, settings in ways.items():
        ours = seconds(name, clients, precision, where, **settings)
        note = f"{duration(ours)} ÷ {duration(by_hand)}"
        yield Row.over([ours / by_hand], "gpu", case, f"{way} ÷ plain loop", note=note)
    if precision != "32-true" or where.type != "cuda":
        return
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        begun = time.perf_counter()
        seconds(name, clients, precision, where)
        whole = time.perf_counter() - begun
    computing = sum(event.self_device_time_total for event in watched.key_averages()) / 1e6
    note = f"{duration(computing)} of a run of {duration(whole)}"
    yield Row.over([computing / whole], "gpu", case, "busy", note=note)


def _distance(name: str, where: torch.device) -> Row:
    """Compare the rounding of two rounds in float32, without TF32, with the CPU's: their distances from float64."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    cpu, ends = torch.device("cpu"), []
    for kind, precision in ((cpu, "64-true"), (cpu, "32-true"), (where, "32-true")):
        torch.manual_seed(0)
        make, shape = NETWORKS[name]
        data = RandomClients(2, 2 * BATCH, shape, batch_size=BATCH, clients_per_batch=2)
        orchestrator = FederatedOrchestrator(Module(make()))
        start = torch.nn.utils.parameters_to_vector(orchestrator.client.parameters()).detach().double()
        trainer = bare_trainer(2, accelerator=accelerator(kind), devices=1, precision=precision)
        trainer.fit(orchestrator, datamodule=data)
        ends.append(orchestrator.params.cpu().double() - start)
    host, here = (float((end - ends[0]).norm() / ends[0].norm()) for end in ends[1:])
    note = f"{here:.1e} ÷ {host:.1e} of the way gone"
    return Row.over([here / host], "gpu", name, "distance from float64, GPU ÷ CPU", "≤ 3", note)


def _two_processes(where: torch.device) -> Iterator[Row]:
    """Compare two processes that share the GPU, each with a run of its own, with one process."""
    command = [sys.executable, "-m", "benchmarks.gpu", "2NN", "20", "32-true"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    both = [float(process.communicate()[0].splitlines()[-1]) for process in started]
    alone = seconds("2NN", 20, "32-true", where)
    note = f"{duration(median(both))} ÷ {duration(alone)}"
    figure = "a round of two processes at a time ÷ one alone"
    yield Row.over([median(both) / alone], "gpu", "2NN, 20 clients, 32-true", figure, note=note)


if __name__ == "__main__":
    quiet()
    found = device()
    if found is None:
        sys.exit("no GPU here")
    print(seconds(sys.argv[1], int(sys.argv[2]), sys.argv[3], found))
