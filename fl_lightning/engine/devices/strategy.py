"""The client_parallel strategy, whose devices train different clients of the cohort."""

from __future__ import annotations

import atexit
import os
from subprocess import Popen
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.distributed import distributed_c10d
from typing_extensions import override

from fl_lightning.engine.devices.forks import Fork, ForkLauncher
from fl_lightning.engine.devices.ranks import RankWatch, meeting
from fl_lightning.errors import ConfigurationError
from fl_lightning.lightning_private import keep_samplers

STARTER = "FL_LIGHTNING_STARTER"  # environment variable, for the processes that a process starts: its number


class ClientParallelStrategy(DDPStrategy):
    """Starts processes as DDP does, but wraps no module: gradients stay on their client, the devices share updates.

    Every device computes the same round from all updates, so the result does not depend on the number of devices.
    (Plain DDP would split each client's batches, which means fewer local steps and so another algorithm.) Every device
    evaluates the whole test set: a distributed sampler would pad the test set and so change the metrics. So no metric
    is summed over devices, and ``all_gather`` in a module returns what it returns on one device.
    """

    strategy_name = "client_parallel"
    start_methods = ("popen",)
    watch: RankWatch | None = None  # of a run on several devices

    @override
    def _configure_launcher(self) -> None:
        if self._start_method not in self.start_methods:
            raise ConfigurationError(
                f"start_method must be 'popen', got {self._start_method!r}: the processes of other start methods end "
                "with the fit, and the states of rules with them"
            )
        super()._configure_launcher()
        if "LOCAL_RANK" not in os.environ:  # else another process has started this one
            os.environ[STARTER] = str(os.getpid())

    @override
    def setup_distributed(self) -> None:
        self.set_world_ranks()
        starter = int(os.environ.pop(STARTER, os.getpid()))
        if self.world_size > 1:
            children = [process for process in getattr(self.launcher, "procs", ()) if isinstance(process, Popen | Fork)]
            parent: int | None = None
            if starter != os.getpid():
                parent = starter
            elif self.global_rank:
                parent = os.getppid()
            self.watch = RankWatch(self.global_rank, self.world_size, children, parent)
            self.watch.start()
        with meeting(self.global_rank, self.world_size), isolate_rng(include_cuda=False):
            super().setup_distributed()  # which would seed the generators anew, after seed_everything
        atexit.register(_leave)
        if self.watch:
            self.watch.store = distributed_c10d.PrefixStore("fl_lightning", distributed_c10d._get_default_store())

    @override
    def setup(self, trainer: Trainer) -> None:
        keep_samplers(trainer)
        super().setup(trainer)

    @override
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        if self.watch:
            self.watch.explain(exception)

    @override
    def teardown(self) -> None:
        if self.watch:
            self.watch.over.set()
            self.watch = None
        super().teardown()

    @override
    def configure_ddp(self) -> None:
        pass  # DDP wraps the module here

    @override
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        return tensor  # a metric: every device has evaluated everything

    @override
    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        return tensor  # as on one device

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        votes = torch.tensor(int(decision), device=self.root_device)
        distributed_c10d.all_reduce(votes)
        return int(votes) >= (self.world_size if all else 1)


class ForkedStrategy(ClientParallelStrategy):
    """Starts the other processes as copies of the first one, in a command that ends them where it ends."""

    @override
    def _configure_launcher(self) -> None:
        super()._configure_launcher()
        assert self.cluster_environment is not None
        if not self.cluster_environment.creates_processes_externally:
            self._launcher = ForkLauncher(self.cluster_environment, self.num_processes, self.num_nodes)


StrategyRegistry.register(  # for Trainer(strategy="client_parallel")
    ClientParallelStrategy.strategy_name, ClientParallelStrategy, description=ClientParallelStrategy.__doc__
)


def _leave() -> None:
    """End the exchange before Python ends: left to itself, one of gloo's threads may abort a process that is done."""
    if distributed_c10d.is_initialized():
        distributed_c10d.destroy_process_group()


def busy(trainer: Trainer, what: str) -> None:
    """Tell the other devices what this device is doing, for their messages."""
    if watch := getattr(trainer.strategy, "watch", None):
        watch.busy(what)


def waits(trainer: Trainer) -> None:
    """Tell the other devices that this device waits for them."""
    if watch := getattr(trainer.strategy, "watch", None):
        watch.waits()


def seconds_waited(trainer: Trainer) -> float:
    """Return the seconds in which this device has waited for others so far."""
    watch = getattr(trainer.strategy, "watch", None)
    return watch.waited if watch else 0.0


def mean_of_devices(trainer: Trainer, value: float) -> float:
    """Average a number over the devices; all must call this."""
    if trainer.world_size == 1:
        return value
    mean = torch.tensor(value / trainer.world_size, dtype=torch.float64, device=trainer.strategy.root_device)
    distributed_c10d.all_reduce(mean)
    return float(mean)


def finish_work(device: torch.device) -> None:
    """Wait until a device has finished its queued work; a CPU has no queue."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def agree(trainer: Trainer, update: Tensor) -> None:
    """Copy the first device's update (P,) to every device, in place: GPUs may sum in different orders."""
    if trainer.world_size > 1:
        distributed_c10d.broadcast(update, src=0)
