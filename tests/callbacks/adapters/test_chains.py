"""Rules on adapters: the same bits when a run is stopped and goes on, and on two devices."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.adapted import fitted
from lib.two_devices import on_two_devices
from lightning.pytorch import Callback
from torch import Tensor

from fl_lightning.callbacks import (
    ClientDP,
    FedExLoRA,
    FedProx,
    FLoRA,
    GradientHarmonization,
    HetLoRA,
    LocalPart,
    NormClipping,
    PCGrad,
    TopK,
)

CHAINS: dict[str, Callable[[], Sequence[Callback]]] = {
    "FedExLoRA": lambda: [FedExLoRA()],
    "FLoRA": lambda: [FLoRA()],
    "HetLoRA": lambda: [HetLoRA([2, 1])],
    "FedSA-LoRA": lambda: [LocalPart(["*.lora_B.*"])],
    "GH": lambda: [GradientHarmonization(), FedExLoRA()],
    "PCGrad": lambda: [PCGrad(), FedExLoRA()],
    "FedProx": lambda: [FedProx(0.1), FLoRA()],
    "TopK": lambda: [TopK(0.5), FedExLoRA()],
    "clipping": lambda: [NormClipping(0.05), FLoRA()],
    "ranks": lambda: [HetLoRA([2, 1]), FedExLoRA()],
    "ClientDP": lambda: [ClientDP(1.0, noise_multiplier=1.0)],
}


def ends(name: str, resume: Path | None = None, rounds: int = 3, **settings: Any) -> dict[str, Tensor]:
    """Train a chain; all tensors of the model at the end."""
    made = fitted(*CHAINS[name](), rounds=rounds, resume=resume, **settings)
    if rounds == 2 and resume is None:
        made.fitted_by.save_checkpoint(settings["default_root_dir"] / "two.ckpt")
    return {key: value.cpu().clone() for key, value in made.client.state_dict().items()}


@pytest.fixture(scope="module")
def whole() -> dict[str, dict[str, Tensor]]:
    return {name: ends(name) for name in CHAINS}


@pytest.mark.parametrize("name", CHAINS)
def test_a_stopped_run_goes_on(name: str, whole: dict[str, Any], tmp_path: Path) -> None:
    ends(name, rounds=2, default_root_dir=tmp_path)
    resumed = ends(name, resume=tmp_path / "two.ckpt")
    assert all(torch.equal(resumed[key], value) for key, value in whole[name].items())


def test_two_devices(whole: dict[str, Any], tmp_path: Path) -> None:
    found = on_two_devices(tmp_path, {name: partial(ends, name) for name in CHAINS})
    for name, both in found.items():
        for one in both:
            assert not isinstance(one, str), f"{name}: {one}"
            assert all(torch.equal(one[key], value) for key, value in whole[name].items()), name
