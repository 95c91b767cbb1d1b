"""Ranks that start from different models train one device's bits; ranks that differ otherwise are stopped by name.

The ranks of a table try all its cases, one fit each, so that a table costs one start.
"""

import json
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.command import TINY, process
from lib.toy import trainer
from lib.two_devices import on_two_devices
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedCallback, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FedProx, NormClipping
from fl_lightning.engine.devices import ranks
from fl_lightning.engine.same_start import _difference
from fl_lightning.errors import ConfigurationError


def rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0))


class Net(LightningModule):
    """Tensors of all kinds, drawn without a seed of their own, that the loss reads."""

    def __init__(self, drop: float = 0.0, width: int = 1) -> None:
        super().__init__()
        self.more = nn.Linear(1, width).requires_grad_(False)
        self.layer = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(drop))
        self.frozen = nn.Parameter(torch.randn(2).to(memory_format=torch.contiguous_format), requires_grad=False)
        self.register_buffer("scale", torch.randn(2, 2).T)
        self.register_buffer("mask", torch.rand(2) > 0.5)
        self.register_buffer("count", torch.randint(1000, ()))
        self.register_buffer("expanded", torch.randn(1).expand(2))
        self.register_buffer("sparse", torch.randn(2, 2).to_sparse())
        self.register_buffer("none", None)
        self.register_buffer("empty", torch.empty(0))
        self.attribute = torch.randn(2)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        out = self.layer(batch[0]) @ self.scale + self.sparse.to_dense() @ self.frozen
        return ((out * self.mask + self.attribute * self.expanded - self.count / 1000 - batch[1]) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OtherRate(Net):
    """A rate that stands nowhere but in the optimizer."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3 if rank() else 0.1)


class Late(Net):
    """Draws its weights when the fit starts."""

    def on_fit_start(self) -> None:
        nn.init.normal_(self.layer[0].weight)


class Own(Net):
    """Sets another weight on each rank when the fit starts."""

    def on_fit_start(self) -> None:
        nn.init.constant_(self.layer[0].weight, rank())


class Data(FederatedDataModule):
    """Five clients, of 2 to 6 examples."""

    num_clients = 5

    def __init__(self, more: int = 0, shift: float = 0.0, root: str = "", **settings: Any) -> None:
        super().__init__(batch_size=2, drop_last=True, **settings)
        self.more, self.root = more, root
        self.x = torch.arange(90.0).view(5, 6, 3).sin() + shift

    def client_dataset(self, client: int) -> Dataset[Any]:
        x = self.x[client, : min(6, 2 + client + self.more)]
        return TensorDataset(x, x[:, :2])


class Noise(FederatedCallback):
    """A rule that draws from the global generators, on every device."""

    def update(self, orchestrator: Any, cohort: Any, update: Tensor) -> Tensor:
        return update + 0.01 * torch.randn(len(update)) + np.random.rand()


class Weighs(FederatedCallback):
    """A rule whose settings are no arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 0.5 + rank()


Made = tuple[FederatedOrchestrator, FederatedDataModule, list[Any], dict[str, Any]]


def run(client: Any = Net, data: Any = None, rules: Any = (), rounds: int = 2, **model: Any) -> Made:
    return (
        FederatedOrchestrator(client(), on_bad_update="raise", **model),
        data or Data(),
        list(rules),
        {"rounds": rounds},
    )


HELD: dict[str, Callable[[], Made]] = {  # what may differ: the first rank's goes to all, or it changes nothing
    "tensors": lambda: run(rules=[NormClipping(1.0)]),
    "generators": lambda: run(Late, rules=[Noise()]),
    "paths and times": lambda: timed(run(data=Data(root=f"/of/rank/{rank()}"))),
}
REFUSED: dict[str, tuple[Callable[[], Made], str]] = {
    "sizes": (lambda: run(data=Data(more=rank())), "data.more is 0 on rank 0 and 1 on rank 1; clients' sizes is "),
    "examples": (lambda: run(data=Data(shift=0.5 * rank())), "clients' examples is "),
    "seed": (lambda: run(seed=rank()), "model.seed is 0 on rank 0 and 1 on rank 1: start all ranks"),
    "epochs": (lambda: run(local_epochs=1 + rank()), "local work is LocalSettings(epochs=1, steps=None"),
    "server": (lambda: run(server_optimizer=server), "server optimizer 1 is [SGD, [{lr: 1.0, "),
    "schedule": (lambda: run(local_lr_scheduler=schedule), "schedule 1 is StepLR("),
    "rounds": (lambda: run(rounds=2 + rank()), "trainer.max_epochs is 2 on rank 0 and 3 on rank 1: start all"),
    "a rule's number": (lambda: run(rules=[Weighs()]), "callback Weighs is Weighs(factor=0.5) on rank 0 and"),
    "rules": (lambda: run(rules=[FedProx(0.1)] * (1 - rank())), "callbacks is [FedProx] on rank 0 and [] on rank"),
    "dropout": (lambda: run(lambda: Net(drop=0.1 * rank())), "Net.layer.2.p is 0.0 on rank 0 and 0.1 on rank 1"),
    "rate in the optimizer": (lambda: run(OtherRate), "client optimizer 1 is [SGD, [{lr: 0.1, "),
    "weights set late": (lambda: run(Own), "the model after on_fit_start is "),
    "shapes": (
        lambda: run(lambda: Net(width=2 + rank())),
        "Net.more.out_features is 2 on rank 0 and 3 on rank 1; client.more.weight is (2",
    ),
}


def server(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1.0 - 0.5 * (rank() > 0))


def timed(made: Made) -> Made:
    """As after a fit in which monitors have taken time."""
    made[0].seconds_looking = rank()
    return made


def schedule(optimizer: Any) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1 + rank())


def fit(make: Callable[[], Made], resume: Path | None = None, **settings: Any) -> FederatedOrchestrator:
    """Fit; each rank draws other numbers."""
    torch.manual_seed(rank())
    np.random.seed(rank())
    orchestrator, data, rules, more = make()
    trainer(*rules, **more, **settings).fit(orchestrator, datamodule=data, ckpt_path=resume)
    return orchestrator


def whole(orchestrator: FederatedOrchestrator) -> dict[str, Any]:
    client: Any = orchestrator.client
    named = {**client.state_dict(), "attribute": client.attribute}
    return {name: each.to_dense().tolist() for name, each in named.items()}


def saved(folder: Path, number: int) -> Path:
    """A checkpoint after one round, another one for each number."""
    torch.manual_seed(number)
    orchestrator, data, rules, _ = run()
    one = trainer(*rules, rounds=1)
    one.fit(orchestrator, datamodule=data)
    one.save_checkpoint(file := folder / f"{number}.ckpt")
    return file


def ended(make: Callable[[], Made], checkpoints: list[Path], **flags: Any) -> str:
    """What a fit on this rank ends with, as JSON, from the rank's checkpoint if there are any; or its refusal."""
    try:
        return json.dumps(whole(fit(make, checkpoints[min(rank(), 1)] if checkpoints else None, **flags)))
    except ConfigurationError as error:
        return str(error)


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (["0.1", "0.1"], None),
        (["0.1", "0.2"], "rate is 0.1 on rank 0 and 0.2 on rank 1"),
        (["0.1", "0.1", "0.2"], "rate is 0.1 on rank 0 and 0.2 on rank 2"),
        ([None, "0.2", "0.2"], "rate is missing on rank 0 and 0.2 on ranks 1, 2"),
        (["ab", "abc"], "rate is ab on rank 0 and abc on rank 1"),
        (
            ["a" * 100 + "b" + "c" * 100, "a" * 100 + "d" + "c" * 100],
            f"rate is …{'a' * 30}b{'c' * 29}… on rank 0 and …{'a' * 30}d{'c' * 29}… on rank 1",
        ),
    ],
    ids=["same", "other", "third", "missing", "longer", "long"],
)
def test_a_line_shows_where_two_ranks_first_differ(facts: list[str | None], line: str | None) -> None:
    """Of a long text, 60 letters, of which 30 come before the one that differs."""
    assert _difference("rate", facts) == line


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_that_start_differently(world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held are the first rank's tensors, bit for bit those of one device; no case ends differently on two ranks."""
    monkeypatch.setattr(ranks, "PATIENCE_S", 0)  # in each refused case
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")  # as after seed_everything, with which DDP would seed each rank anew
    one, other = (saved(tmp_path, number) for number in range(2))
    makes = HELD | {name: make for name, (make, _) in REFUSED.items()}
    jobs: dict[str, Callable[..., Any]] = {name: partial(ended, make, []) for name, make in makes.items()}
    jobs |= {"resumed": partial(ended, run, [one, one]), "other checkpoint": partial(ended, run, [one, other])}
    found = on_two_devices(tmp_path, jobs, world)
    assert all(set(each) == {each[0]} for each in found.values()), found
    for name, make in HELD.items():
        assert found[name][0] == ended(make, []), name
    assert found["resumed"][0] == ended(run, [one])
    for name, (_, line) in {**REFUSED, "other checkpoint": (run, "the model in ckpt_path is ")}.items():
        assert found[name][0].startswith(f"ranks differ: {line}"), (name, found[name])
        assert "\n" not in found[name][0]


OWN = """
import os
from fl_lightning import FederatedCallback

class Rule(FederatedCallback):
    def __init__(self, what: str):
        super().__init__()
        self.what, self.strength = what, float(os.environ.get("LOCAL_RANK", 0)) if what == "differs" else 1.0

    def setup(self, trainer, pl_module, stage):
        super().setup(trainer, pl_module, stage)
        if self.what == "ends" and trainer.global_rank == 1:
            os._exit(3)
"""
LINES = {
    "differs": "ranks differ: callback Rule is Rule(strength=0.0, what='differs') on rank 0 and Rule(",
    "ends": "rank 1 (the start) ended with status 3\n",
    "port": "port {port} of this machine, at which ranks are to meet, is in use: set MASTER_PORT to another port, or",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LINES)
def test_one_line_for_all_ranks(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that differ, a rank that ends at the start, a port in use: one line, no traceback, a status."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    Path("tiny.yaml").write_text(TINY)
    rule = ["--trainer.callbacks", "own.Rule", "--trainer.callbacks.what", what]
    if what == "differs":  # copies of one process do not
        rule += ["--trainer.strategy", "client_parallel"]
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        environment = {"MASTER_PORT": port} if what == "port" else {}
        ended = process("fit", "--config", "tiny.yaml", "--trainer.devices", 2, *rule, **environment)
    assert ended.returncode in (1, 2)
    assert ended.stderr.count("fl-lightning: error: ") == 1
    assert f"fl-lightning: error: {LINES[what].format(port=port)}" in ended.stderr
    assert "Traceback" not in ended.stderr
