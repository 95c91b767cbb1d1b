"""Float32 products on the server are whole ones; those of clients are what the user asked for."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.tiny_images import fit
from lib.toy import Capture
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fl_lightning import ClientResult, Cohort, FederatedCallback, LocalRun, Server
from fl_lightning.callbacks import CoordinateMedian, NormClipping, ServerFT
from fl_lightning.engine.module.exact import full_float32

PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)
GPU, CPU = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """No test leaves a flag behind."""
    yield
    torch.set_float32_matmul_precision("highest")
    GPU.fp32_precision = CPU.fp32_precision = "none"


class TF32(TorchDispatchMode):
    """Rounds the factors of float32 matrix products to 10 bits, as a GPU does where torch's flag says so."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS and GPU.fp32_precision == "tf32":
            args = [rounded(arg) if isinstance(arg, Tensor) and arg.dtype == torch.float32 else arg for arg in args]
        return func(*args, **(kwargs or {}))


def rounded(tensor: Tensor) -> Tensor:
    """Round a float32 tensor's 23 bits to 10."""
    return (tensor.view(torch.int32) + (1 << 12)).bitwise_and(~((1 << 13) - 1)).view(torch.float32)


def cohort(deltas: Tensor) -> Cohort:
    results = [ClientResult(k, num_samples=1, num_steps=1, loss=0.0, normalizer=1.0) for k in range(len(deltas))]
    return Cohort.collect(round=1, anchor=torch.zeros(deltas.shape[1]), deltas=deltas, results=results)


def median(block: Tensor) -> Tensor:
    return block.median(0).values


def test_uncorrected_updates_are_reduced_as_they_came() -> None:
    """1 + 2⁻¹² needs 12 bits: the identity times it would be 1 in TF32."""
    deltas = torch.tensor([[1 + 2**-12], [0.0], [2.0]])
    torch.set_float32_matmul_precision("high")
    with TF32():
        assert (torch.eye(3) @ deltas)[0] == 1
        assert cohort(deltas).by_coordinate(median).tolist() == [1 + 2**-12]


class Look(FederatedCallback):
    """Remembers the update, and torch's flag for GPUs as each hook finds it."""

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self.flags: dict[str, str] = {}

    def on_before_client_step(self, run: LocalRun) -> None:
        self.flags["client"] = GPU.fp32_precision

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        self.flags["aggregate"] = GPU.fp32_precision
        return cohort

    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        self.flags["update"], self.step = GPU.fp32_precision, update
        return update

    def refine(self, orchestrator: Server, cohort: Cohort) -> None:
        self.flags["refine"] = GPU.fp32_precision


def test_clients_use_tf32_and_the_server_does_not(tmp_path: Path) -> None:
    """The median of clipped updates; a rule that trains the model on the server does so as clients do."""
    torch.set_float32_matmul_precision("high")
    look, capture = Look(), Capture()
    with TF32():
        fit(tmp_path, NormClipping(0.001), CoordinateMedian(), ServerFT(epochs=1), look, capture, rounds=1)
    tf32 = "tf32"
    assert look.flags == {"client": tf32, "aggregate": "ieee", "update": "ieee", "refine": tf32}
    reduce = CoordinateMedian().reduce
    with TF32():
        assert not torch.equal(look.step, reduce(None, capture.cohort))  # type: ignore[arg-type]  # it asks the cohort
    torch.set_float32_matmul_precision("highest")
    assert torch.equal(look.step, reduce(None, capture.cohort))  # type: ignore[arg-type]  # it asks the cohort alone


def newer(gpu: str, cpu: str) -> None:
    GPU.fp32_precision, CPU.fp32_precision = gpu, cpu


def older(allow: bool) -> None:
    GPU.allow_tf32 = allow


def flags() -> tuple[Any, ...]:
    try:
        word = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch has no word for such a combination
        word = "none"
    return GPU.fp32_precision, CPU.fp32_precision, word


@pytest.mark.parametrize(
    "choose",
    [
        lambda: None,
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: older(True),
        lambda: newer("tf32", "bf16"),
        lambda: (torch.set_float32_matmul_precision("medium"), older(False)),
    ],
)
def test_all_of_torchs_flags_are_understood_and_restored(choose: Callable[[], Any]) -> None:
    choose()
    before = flags()
    with full_float32():
        assert flags()[:2] == ("ieee", "ieee")
    assert flags() == before
    with pytest.raises(ValueError, match="inside"), full_float32():
        raise ValueError("inside")
    assert flags() == before
