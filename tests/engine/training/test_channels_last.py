"""channels_last changes where numbers lie in memory, and results by rounding alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lib.toy import SEEN, close, trainer
from safetensors.torch import load_file
from torch import Tensor, nn

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedGAM, GradientHarmonization, Scaffold
from fl_lightning.datamodules import Tensors
from fl_lightning.models import ImageClassifier
from fl_lightning.runs.export import export


def network() -> nn.Module:
    """Two convolutions on images of three channels: the second's weights have four dimensions of more than 1."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(80, 3)
    )


def data() -> Tensors:
    """Four clients of ten images."""
    make = torch.Generator().manual_seed(0)
    images, labels = (torch.rand(50, 3, 8, 8, generator=make) * 255).byte(), torch.randint(3, (50,), generator=make)
    split = {"train": (images[:40], labels[:40]), "test": (images[40:], labels[40:])}
    return Tensors(**split, num_clients=4, batch_size=5, num_classes=3, clients_per_batch=4)


class Strides(ImageClassifier):
    """Records the strides of the images that it trains on."""

    seen: ClassVar[set[tuple[int, ...]]] = set()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.add(batch[0].stride())
        return super().training_step(batch, batch_idx)


def run(
    *rules: Callable[[], Any],
    rounds: int = 2,
    kind: type[ImageClassifier] = ImageClassifier,
    start: Path | None = None,
    **settings: Any,
) -> tuple[Any, FederatedOrchestrator]:
    fit = trainer(*(rule() for rule in rules), rounds=rounds)
    module = kind(network(), 3, optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.5))
    orchestrator = FederatedOrchestrator(module, on_bad_update="raise", **settings)
    fit.fit(orchestrator, datamodule=data(), ckpt_path=start)
    return fit, orchestrator


@pytest.mark.parametrize("rules", [[], [Scaffold, GradientHarmonization], [FedGAM]])
def test_results_are_those_of_the_usual_order(rules: list[Any]) -> None:
    _, usual = run(*rules)
    for at_once in (1, 4):
        _, last = run(*rules, channels_last=True, clients_at_once=at_once)
        assert SEEN[last].group_size == at_once
        for name, one in usual.client.state_dict().items():
            assert close(last.client.state_dict()[name], one, 1e-5), name


@pytest.mark.parametrize(
    ("last", "weights", "images"), [(True, (36, 1, 12, 4), (192, 1, 24, 3)), (False, (36, 9, 3, 1), (192, 64, 8, 1))]
)
def test_weights_and_images_lie_channels_last(last: bool, weights: tuple[int, ...], images: tuple[int, ...]) -> None:
    Strides.seen.clear()
    _, orchestrator = run(kind=Strides, channels_last=last)
    assert orchestrator.client.network[3].weight.stride() == weights
    assert Strides.seen == {images}


def test_a_resumed_run_keeps_the_order(tmp_path: Path) -> None:
    """With the same order it ends at the same weights, bit for bit; with the other it is refused."""
    stopped, _ = run(Scaffold, rounds=1, channels_last=True)
    stopped.save_checkpoint(tmp_path / "one.ckpt")
    _, whole = run(Scaffold, channels_last=True)
    _, again = run(Scaffold, channels_last=True, start=tmp_path / "one.ckpt")
    for one, other in zip(whole.client.state_dict().values(), again.client.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ConfigurationError, match=r"another order .* set model\.channels_last"):
        run(Scaffold, start=tmp_path / "one.ckpt")


def test_the_model_is_exported_as_usual(tmp_path: Path) -> None:
    fit, orchestrator = run(channels_last=True)
    fit.save_checkpoint(tmp_path / "last.ckpt")
    export(tmp_path / "last.ckpt", tmp_path / "model.safetensors")
    weights = load_file(tmp_path / "model.safetensors")
    assert torch.equal(weights["network.3.weight"], orchestrator.client.network[3].weight)  # type: ignore[index, union-attr]
