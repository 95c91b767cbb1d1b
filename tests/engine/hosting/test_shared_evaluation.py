"""Two processes divide the forward passes of an evaluation, and log what one logs; a network that is more than a
function of its input is computed by each.
"""

from pathlib import Path

import pytest
from lib.command import TINY, fit_on, rows
from lib.resumed import assert_same

OWN = """
import os
import numpy as np
import torch
from lightning import Callback
from pathlib import Path
from torch import nn
from torch.nn import functional as F
from fl_lightning.models import ImageClassifier, TwoNN

class Network(TwoNN):
    def forward(self, inputs):
        if not torch.is_grad_enabled():
            with Path(f"calls-{os.environ.get('LOCAL_RANK', 0)}").open("a") as file:
                file.write("x")
        return super().forward(inputs)

class Drawing(Network):
    def forward(self, inputs):
        return F.dropout(super().forward(inputs), 0.5, training=True)

class DrawingByNumpy(Network):
    def forward(self, inputs):
        return super().forward(inputs) * float(np.random.uniform())

class Counting(Network):
    calls = 0
    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs) * self.calls

class Frozen(Network):
    def __init__(self):
        super().__init__(in_features=64)
        self.factor = nn.Parameter(torch.ones(2**20), requires_grad=False)  # remembered by a checksum
    def forward(self, inputs):
        return super().forward(inputs) * self.factor[0]

class Widening(Network):
    def forward(self, inputs):
        return super().forward(inputs).repeat(1, 1 if torch.is_grad_enabled() else 7)

class Wide(ImageClassifier):
    def validation_step(self, batch, index):
        self.log("val/mean", self.network(batch[0]).mean())

class Twice(ImageClassifier):
    def validation_step(self, batch, index):
        self.log("val/sum", (self.network(batch[0]) + self.network(batch[0].flip(1))).sum())

class Adapting(ImageClassifier):
    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        for parameter in self.network.parameters():
            parameter.data.mul_(0.99)

class Doubling(ImageClassifier):
    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.network.factor.data.mul_(2)

class Darkening(Callback):
    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        batch[0].mul_(0.5)

class Looking(Callback):
    def on_validation_epoch_start(self, trainer, pl_module):
        if trainer.is_global_zero:
            pl_module.client.network(torch.zeros(3, 1, 8, 8))

class Swapping(Callback):
    def on_validation_epoch_start(self, trainer, pl_module):
        pl_module.client.network.requires_grad_()
        for parameter in pl_module.client.parameters():
            parameter.data.add_(0.01)
"""
CONFIG = TINY.replace("class_path: TwoNN", "class_path: own.Network") + "    eval_batch_size: 50\n"
BATCHES, ROUNDS = 8, 2  # 360 images to test on


def calls(rank: int) -> int:
    return len(Path(f"calls-{rank}").read_text())


def compare(*options: str) -> None:
    """Train on one device and on two."""
    for devices in (1, 2):
        for path in Path().glob("calls-*"):
            path.unlink()
        fit_on(devices, *options, "--experiment", f"on-{devices}", config="own.yaml")
    one, two = (Path(f"runs/on-{devices}/version_0") for devices in (1, 2))
    assert len(rows(one / "metrics.csv")) == ROUNDS
    assert (one / "metrics.csv").read_bytes() == (two / "metrics.csv").read_bytes()
    assert_same(one / "checkpoints/last.ckpt", two / "checkpoints/last.ckpt")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    Path("own.yaml").write_text(CONFIG)


def test_each_process_computes_half_of_the_batches() -> None:
    """Of the first evaluation, all but its first batch."""
    compare()
    assert (calls(0), calls(1)) == (1 + 4 + 4, 1 + 3 + 4)


def test_a_second_call_is_computed() -> None:
    compare("--model.client", "own.Twice")
    assert calls(0) == 1 + 4 + 4 + ROUNDS * BATCHES


@pytest.mark.parametrize("network", ["Drawing", "DrawingByNumpy", "Counting"])
def test_a_network_that_is_no_function_of_its_input_is_not_shared(network: str) -> None:
    compare("--model.client.network", f"own.{network}")
    assert calls(0) == calls(1) == ROUNDS * BATCHES


def test_large_outputs_are_not_shared() -> None:
    compare("--model.client", "own.Wide", "--model.client.network", "own.Widening")
    assert calls(0) == calls(1) == ROUNDS * BATCHES


def test_a_network_that_changes_between_two_steps_is_computed_anew() -> None:
    compare("--model.client", "own.Adapting")
    assert calls(0) > ROUNDS * BATCHES


def test_large_frozen_parameters_are_seen_to_change() -> None:
    compare("--model.client.network", "own.Frozen")
    assert (calls(0), calls(1)) == (1 + 4 + 4, 1 + 3 + 4)
    compare("--model.client", "own.Doubling", "--model.client.network", "own.Frozen")
    assert calls(0) > ROUNDS * BATCHES


def test_one_process_alone_may_call_the_network() -> None:
    compare("--trainer.callbacks+=own.Looking")
    assert (calls(0), calls(1)) == (ROUNDS + 1 + 4 + 4, 1 + 3 + 4)


@pytest.mark.parametrize("change", ["Darkening", "Swapping"])
def test_what_callbacks_change_is_seen(change: str) -> None:
    """Other inputs are computed by each process; other parameters, set before the first step, are those that count."""
    compare(f"--trainer.callbacks+=own.{change}")
    assert calls(0) >= BATCHES
