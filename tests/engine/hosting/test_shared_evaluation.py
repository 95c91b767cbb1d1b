"""Two processes divide the forward passes of an evaluation, and log what one logs, where classes say that they may;
whatever a class does not say is computed by each.
"""

from pathlib import Path

import pytest
import torch
from lib.command import TINY, fit_on, rows
from lib.resumed import assert_same
from torch import nn

from fl_lightning.engine.hosting.shared_evaluation import is_function_of_batch
from fl_lightning.models import CifarResNet, ImageClassifier, LeNet, TwoNN

OWN = """
import os
import torch
from lightning import Callback
from pathlib import Path
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from fl_lightning.models import ImageClassifier, TwoNN

class Network(TwoNN):
    shares_evaluation = True
    task = 0
    bits = 32
    def forward(self, inputs):
        if not torch.is_grad_enabled():
            with Path(f"calls-{os.environ.get('LOCAL_RANK', 0)}").open("a") as file:
                file.write("x")
        outputs = super().forward(inputs).roll(self.task, 1)
        return outputs if self.bits == 32 else outputs.mul(2**self.bits).round().div(2**self.bits)

class SaysNothing(Network):
    pass

class OwnLayer(Network):
    def __init__(self):
        super().__init__(in_features=64)
        self.append(Last())

class Last(nn.Module):
    def forward(self, inputs):
        return inputs

class Twice(ImageClassifier):
    shares_evaluation = True
    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.log("val/sum", self(batch[0]).sum() + self(batch[0].flip(1)).sum())

class TwoHeads(ImageClassifier):
    def validation_step(self, batch, index):
        for task in (1, 0):
            self.network.task = task
            self.log(f"val/task{task}", F.cross_entropy(self.network(batch[0]), batch[1]))
        self.network.task = 0

class Bits(ImageClassifier):
    def validation_step(self, batch, index):
        for bits in (4, 32):
            self.network.bits = bits
            self.log(f"val/bits{bits}", F.cross_entropy(self(batch[0]), batch[1]))

class Autocast(ImageClassifier):
    def validation_step(self, batch, index):
        with torch.autocast("cpu", torch.bfloat16):
            self.log("val/low", F.cross_entropy(self(batch[0]).float(), batch[1]))

class Mapped(ImageClassifier):
    def validation_step(self, batch, index):
        tensors = dict(self.network.named_parameters())
        each = vmap(lambda image: functional_call(self.network, tensors, (image[None],))[0])
        self.log("val/mapped", F.cross_entropy(each(batch[0]), batch[1]))

class Switching(Callback):
    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        pl_module.client.network.task = batch_idx % 3

class Darkening(Callback):
    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        batch[0].mul_(0.5)

class Looking(Callback):
    def on_validation_epoch_start(self, trainer, pl_module):
        if trainer.is_global_zero:
            pl_module.client.network(torch.zeros(3, 1, 8, 8))

class Swapping(Callback):
    def on_validation_epoch_start(self, trainer, pl_module):
        for parameter in pl_module.client.parameters():
            parameter.data.add_(0.01)

class Hooked(Callback):
    def on_validation_epoch_start(self, trainer, pl_module):
        if trainer.is_global_zero and trainer.current_epoch == 1:
            pl_module.client.network.register_forward_hook(lambda layer, inputs, output: None)
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
    compare()
    assert (calls(0), calls(1)) == (4 + 4, 4 + 4)


def test_a_second_call_is_computed() -> None:
    """Of each batch, the first of three calls is shared."""
    compare("--model.client", "own.Twice")
    assert calls(0) == 4 + 4 + 2 * ROUNDS * BATCHES


@pytest.mark.parametrize(("client", "calls_of_a_batch"), [("TwoHeads", 2), ("Bits", 2), ("Autocast", 1), ("Mapped", 1)])
def test_a_step_of_ones_own_is_taken_by_each_process(client: str, calls_of_a_batch: int) -> None:
    compare("--model.client", f"own.{client}")
    assert calls(0) == calls(1) == calls_of_a_batch * ROUNDS * BATCHES


@pytest.mark.parametrize("network", ["SaysNothing", "OwnLayer"])
def test_a_network_that_says_nothing_is_computed_by_each(network: str) -> None:
    """Nor is one that says that it may be shared, with a layer of another class in it."""
    compare("--model.client.network", f"own.{network}")
    assert calls(0) == calls(1) == ROUNDS * BATCHES


@pytest.mark.parametrize("change", ["Switching", "Darkening"])
def test_a_callback_between_two_steps_keeps_each_process_computing(change: str) -> None:
    compare(f"--trainer.callbacks+=own.{change}")
    assert calls(0) == calls(1) == ROUNDS * BATCHES


def test_what_callbacks_do_before_the_first_step_counts() -> None:
    compare("--trainer.callbacks+=own.Swapping")
    assert (calls(0), calls(1)) == (4 + 4, 4 + 4)


def test_one_process_alone_may_call_the_network() -> None:
    compare("--trainer.callbacks+=own.Looking")
    assert (calls(0), calls(1)) == (ROUNDS + 4 + 4, 4 + 4)


def test_processes_that_disagree_share_nothing() -> None:
    """A hook that one process registers in the second round."""
    compare("--trainer.callbacks+=own.Hooked")
    assert (calls(0), calls(1)) == (4 + BATCHES, 4 + BATCHES)


class Own(ImageClassifier):
    pass


class OwnNetwork(TwoNN):
    pass


@pytest.mark.parametrize("network", [TwoNN(), LeNet(), CifarResNet()])
def test_the_classes_of_the_package_say_so(network: nn.Module) -> None:
    assert is_function_of_batch(ImageClassifier(network).eval())
    assert not is_function_of_batch(ImageClassifier(network))  # in training mode
    assert not is_function_of_batch(Own(network).eval())


@pytest.mark.parametrize("network", [OwnNetwork(), nn.Sequential(nn.FractionalMaxPool2d(2, 1), nn.LazyLinear(10))])
def test_no_other_network_does(network: nn.Module) -> None:
    """Layers of torch, put together by somebody else, may draw random numbers."""
    assert not is_function_of_batch(ImageClassifier(network).eval())


def test_what_an_instance_has_of_its_own_is_not_known() -> None:
    module = ImageClassifier(TwoNN()).eval()
    module.network.forward = lambda inputs: torch.zeros(len(inputs), 10)
    assert not is_function_of_batch(module)
