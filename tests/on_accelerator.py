"""What a GPU shows: tensors of two devices that meet, draws without a seed, memory that is never freed.

Where there is no GPU, the device is a pretended one, with the CPU's kernels, and its results are the CPU's bit for bit;
a GPU's are the CPU's but for rounding. test_accelerator runs these tests in a process of their own: autograd's threads
for a device, once started, do not survive the fork that other tests rely on. To run one of them:
``pytest tests/on_accelerator.py -k NAME``. Tests with a case for each rule, which take longest, stand last.
"""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib import pretended
from lib.adapted import Adapted
from lib.adapted import Data as AdaptedData
from lib.rules import CLIENT_RULES
from lib.tiny_images import CALLBACKS, client, data, fit
from lib.toy import SEEN, Capture, trainer
from lib.two_devices import on_two_devices
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.accelerators import CUDAAccelerator
from safetensors.torch import save_file
from torch import Tensor, nn

from fl_lightning import FederatedOrchestrator, LocalRun, Server
from fl_lightning.callbacks import CoordinateMedian, FedAdam, FedLAW, GradientHarmonization, Scaffold
from fl_lightning.datamodules import AutoAugment, RandomCrop, RandomFlip
from fl_lightning.models import ImageClassifier
from fl_lightning.seeding import isolated, seed_globals

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else pretended.NAME


def on_device(precision: str = "32-true") -> dict[str, Any]:
    """Settings of one Trainer on the device."""
    return {"accelerator": DEVICE, "devices": 1, "precision": precision} if GPU else pretended.on_device(precision)


@pytest.fixture(autouse=True, scope="session")
def module() -> Any:
    """The device's module, ``torch.cuda`` or ``torch.pretended``."""
    torch.backends.cudnn.allow_tf32 = False  # TF32 keeps ten bits
    torch.set_num_threads(1)  # several processes run these tests at a time
    return torch.cuda if GPU else pretended.build()


def test_the_device_does_not_mix_with_the_cpu() -> None:
    """As on CUDA: scalars of the CPU may join, and indices into the device's tensor."""
    here, host = torch.arange(3.0, device=DEVICE), torch.ones(3)
    assert (here + torch.tensor(1.0)).tolist() == [1, 2, 3]
    assert here[torch.tensor([2])].tolist() == [2]
    with pytest.raises(RuntimeError, match="same device"):
        here + host
    with pytest.raises(RuntimeError, match="same"):
        nn.functional.conv1d(here.view(1, 1, 3), host.view(1, 1, 3))


def arrays(folder: Path) -> dict[str, Any]:
    """All arrays that monitors have saved in a run folder, by file and name."""
    files = sorted(folder.rglob("*.npz"))
    return {f"{path.name} {name}": value for path in files for name, value in np.load(path).items()}


def rounding(name: str) -> float:
    """The largest difference from the CPU's results.

    FedLAW's products with a gradient are made in another order on a device. On a GPU, ServerFT's Adam makes steps of
    the gradient of the bias before the normalisation, which is nothing but rounding; on the CPU, too: in float64, the
    bias ends 6e-4 from there.
    """
    if GPU:
        return 2e-3 if name == "ServerFT" else 1e-4
    return 1e-5 if name.startswith("FedLAW") else 0.0


def same(here: Tensor, host: Tensor, name: str = "") -> None:
    torch.testing.assert_close(here, host, rtol=rounding(name), atol=rounding(name))


@pytest.mark.skipif(not GPU, reason="torch.compile knows no pretended device")
@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedSAM"])
def test_compiled_steps_do_as_on_the_cpu(name: str) -> None:
    ends = []
    for settings, device in (({"clients_at_once": 6, "compile_clients": True}, on_device()), ({}, {})):
        made = FederatedOrchestrator(client(), on_bad_update="raise", **settings)
        trainer(CALLBACKS[name](), rounds=3, **device).fit(made, datamodule=data())
        ends.append(made.params)
    same(*ends)


class Shared(CUDAAccelerator):
    """The same GPU for every process."""

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(DEVICE, 0)] * devices


def trained(**settings: Any) -> Tensor:
    """Train two rounds with two rules; the model (P,)."""
    made = FederatedOrchestrator(client(), on_bad_update="raise")
    trainer(Scaffold(), GradientHarmonization(), rounds=2, **settings).fit(made, datamodule=data())
    return made.params.cpu()


@pytest.mark.skipif(not GPU, reason="processes share no pretended device")
def test_two_processes_that_share_a_gpu(tmp_path: Path) -> None:
    first, second = on_two_devices(tmp_path, {"gh": partial(trained, accelerator=Shared())}, method="spawn")["gh"]
    assert torch.equal(first, second)
    assert torch.equal(first, trained(**on_device()))


def test_augmentation_does_as_on_the_cpu() -> None:
    def params(**settings: Any) -> Tensor:
        orchestrator = FederatedOrchestrator(client(), on_bad_update="raise")
        augment = [RandomCrop(1), RandomFlip(), AutoAugment()]
        trainer(**settings).fit(orchestrator, datamodule=data(augment=augment))
        return orchestrator.params

    same(params(**on_device()), params())


@pytest.mark.parametrize("rule", [GradientHarmonization, CoordinateMedian, FedAdam, FedLAW, Scaffold])
def test_a_stopped_run_goes_on(rule: Any, tmp_path: Path) -> None:
    """Three rounds at once on the CPU; one and then two more on the device, or on the device and then on the CPU."""

    def run(rounds: int, resume: Path | None = None, **settings: Any) -> tuple[Any, Tensor]:
        made = FederatedOrchestrator(
            client(), on_bad_update="raise", server_optimizer=lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.5)
        )
        runs = trainer(rule(**({"epochs": 2} if rule is FedLAW else {})), rounds=rounds, **settings)
        runs.fit(made, datamodule=data(), ckpt_path=resume)
        return runs, made.params

    expected = run(3)[1]
    stopped, _ = run(1, **on_device())
    stopped.save_checkpoint(tmp_path / "last.ckpt")
    same(run(3, tmp_path / "last.ckpt", **on_device())[1], expected, rule.__name__)
    same(run(3, tmp_path / "last.ckpt")[1], expected, rule.__name__)


PRECISIONS = {"64-true": torch.float64, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def test_frozen_weights_from_elsewhere_enter_no_checkpoint(tmp_path: Path) -> None:
    """Neither the first one of a fit nor later ones; a parameter that has changed does, before the first or later."""
    torch.manual_seed(7)
    path = tmp_path / "weights.safetensors"
    save_file(Adapted(adapted=False).state_dict(), path)
    saved: list[Any] = []
    weight, bias = "network.0.base_layer.weight", "network.2.base_layer.bias"

    class Saving(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if changed := {0: bias, 2: weight}.get(len(saved)):
                with torch.no_grad():
                    pl_module.client.get_parameter(changed).add_(1)
            trainer.save_checkpoint(tmp_path / "one.ckpt")
            saved.append(torch.load(tmp_path / "one.ckpt", "cpu", weights_only=True))

    made = FederatedOrchestrator(Adapted(), init_from=str(path))
    trainer(Saving(), rounds=3, **on_device()).fit(made, datamodule=AdaptedData())
    first, second, third = [set(content["left_out"]) for content in saved]
    assert first == second == {weight, "network.0.base_layer.bias", "network.2.base_layer.weight"}
    assert first - third == {weight}
    assert {f"client.{weight}", f"client.{bias}"} <= saved[2]["state_dict"].keys()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision(precision: str) -> None:
    """The server is at float32 or more; where the clients are, too, the results are the CPU's."""
    seen: set[torch.dtype] = set()
    capture, module = Capture(), client()
    layer = [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
    layer.register_forward_hook(lambda *arguments: seen.add(arguments[-1].dtype))
    here = FederatedOrchestrator(module, on_bad_update="raise")
    trainer(GradientHarmonization(), capture, rounds=2, **on_device(precision)).fit(here, datamodule=data())
    assert PRECISIONS[precision] in seen
    wide = torch.float64 if precision == "64-true" else torch.float32
    assert capture.cohort.deltas.dtype == capture.cohort.update.dtype == here.params.dtype == wide
    if precision == "64-true":
        host = FederatedOrchestrator(client(), on_bad_update="raise")
        trainer(GradientHarmonization(), rounds=2, precision=precision).fit(host, datamodule=data())
        same(here.params, host.params)


class Steps(Capture):
    """Draws on the device when a client ends, which must change nothing for the next one."""

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.draws = draws

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        super().on_client_end(orchestrator, run)  # type: ignore[arg-type]  # the orchestrator is a Server
        if self.draws:
            torch.rand(5, device=DEVICE)


def test_dropout_is_seeded_for_each_client() -> None:
    def params(draws: bool) -> list[Tensor]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        steps, made = Steps(draws), FederatedOrchestrator(ImageClassifier(network, 3), on_bad_update="raise")
        trainer(steps, **on_device()).fit(made, datamodule=data())
        return steps.params

    first = params(draws=False)
    torch.rand(7, device=DEVICE)
    assert all(torch.equal(a, b) for a, b in zip(first, params(draws=True), strict=True))


def test_the_devices_generator_is_restored(module: Any) -> None:
    module.manual_seed(3)
    expected = torch.rand(4, device=DEVICE)
    module.manual_seed(3)
    device = torch.device(DEVICE)
    with isolated(device):
        seed_globals(5, device)
        first = torch.rand(4, device=DEVICE)
        seed_globals(5, device)
        assert torch.equal(torch.rand(4, device=DEVICE), first)
    assert torch.equal(torch.rand(4, device=DEVICE), expected)


class Counts(ImageClassifier):
    """Scales its loss by the number of batches that all clients have trained on: a global variable."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        COUNTED[0] += 1
        return COUNTED[0] * super().training_step(batch, batch_idx)["loss"]


class Scatters(ImageClassifier):
    """Adds each of its 2¹⁶ terms to one of four sums, whose order a GPU does not keep."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        weight = next(self.network.parameters())
        terms = weight.flatten().repeat(1 << 14)[: 1 << 16]
        places = torch.arange(len(terms), device=terms.device) % 4
        sums = terms.new_zeros(4).index_add(0, places, terms.sin() * 1e3)
        return super().training_step(batch, batch_idx)["loss"] + 1e-3 * sums.square().sum()


COUNTED = [0]


@pytest.mark.parametrize("kind", [ImageClassifier, Scatters, Counts])
def test_what_survives_from_client_to_client_is_told(kind: Any, recwarn: pytest.WarningsRecorder) -> None:
    """An operator that does not repeat itself is tolerated, and a state that a search finds is not."""
    module = kind(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), 3)
    trainer(**on_device()).fit(FederatedOrchestrator(module, on_bad_update="raise"), datamodule=data())
    told = [str(each.message) for each in recwarn if "survives from client to client" in str(each.message)]
    assert len(told) == (kind is Counts)
    assert not told or "COUNTED" in told[0]


def devices(orchestrator: FederatedOrchestrator) -> set[str]:
    tensors = [orchestrator.params, *orchestrator.client.parameters(), *orchestrator.client.buffers()]
    return {tensor.device.type for tensor in tensors}


class Elsewhere(Callback):
    """Looks at the model at other parameters while the Trainer validates."""

    def on_validation_epoch_end(self, runs: Any, pl_module: LightningModule) -> None:
        with pl_module.at(torch.zeros_like(pl_module.params)):  # type: ignore[operator, arg-type]  # an orchestrator
            self.seen = devices(pl_module)  # type: ignore[arg-type]  # an orchestrator


def test_the_model_after_a_fit_is_where_the_trainer_leaves_it(module: Any) -> None:
    """The K×P updates, the flat vector and its copies are off the device; a module may come back and go again."""
    made = FederatedOrchestrator(client(), on_bad_update="raise")
    if GPU:  # whose libraries keep what they take for a first fit
        trainer(rounds=1, **on_device()).fit(FederatedOrchestrator(client()), datamodule=data())
    gc.collect()
    before = module.memory_allocated()
    trainer(rounds=1, **on_device()).fit(made, datamodule=data())
    gc.collect()
    number = 512 if GPU else 4  # bytes that one number takes: a GPU gives whole blocks
    assert (
        module.memory_allocated() - before <= number * 2
    )  # the constants that normalise images stay, one channel each
    assert devices(made) == {"cpu"}
    after = made.params.clone()
    with made.at(torch.zeros_like(after)):
        assert devices(made) == {"cpu"}
    assert torch.equal(made.params, after)
    look = Elsewhere()
    trainer(look, **on_device()).validate(made, datamodule=data(), verbose=False)
    assert look.seen == {DEVICE}
    assert devices(made) == {"cpu"}
    trainer(rounds=1, **on_device()).fit(made, datamodule=data())
    trainer(rounds=1).fit(made, datamodule=data())
    assert made.params.isfinite().all()


def test_fits_and_evaluations_in_turns() -> None:
    def params(calls: str, settings: Callable[[], dict[str, Any]]) -> Tensor:
        made = FederatedOrchestrator(client(), on_bad_update="raise")
        for call in calls.split():
            quiet: dict[str, Any] = {} if call == "fit" else {"verbose": False}
            getattr(trainer(**settings()), call)(made, datamodule=data(), **quiet)
        return made.params

    same(params("validate fit validate test fit", on_device), params("fit fit", dict))


@pytest.mark.parametrize("name", CALLBACKS)
def test_rules_and_monitors_do_as_on_the_cpu(name: str, tmp_path: Path) -> None:
    here = fit(tmp_path / "here", CALLBACKS[name](), **on_device())
    host = fit(tmp_path / "host", CALLBACKS[name]())
    same(here.params, host.params, name)
    texts = [(tmp_path / where / "metrics.csv").read_text() for where in ("here", "host")]
    assert rounding(name) or texts[0] == texts[1]
    found, expected = arrays(tmp_path / "here"), arrays(tmp_path / "host")
    assert found.keys() == expected.keys()
    for each in expected:
        np.testing.assert_allclose(found[each], expected[each], rtol=rounding(name))


SERVE_GROUPS = CLIENT_RULES.keys() - {"AveragedMoments"}  # that one takes the optimizers of single clients


@pytest.mark.parametrize("name", ["FedAvg", *sorted(SERVE_GROUPS), "ClientMonitor", "PersonalEvaluation", "SignFlip"])
def test_clients_at_once_do_as_on_the_cpu(name: str) -> None:
    ends = []
    for device in ({}, on_device()):
        orchestrator = FederatedOrchestrator(client(), on_bad_update="raise", clients_at_once=6)
        trainer(CALLBACKS[name](), rounds=3, **device).fit(orchestrator, datamodule=data())
        assert SEEN[orchestrator].group_size == 6
        ends.append(orchestrator.params)
    same(ends[1], ends[0], name)
