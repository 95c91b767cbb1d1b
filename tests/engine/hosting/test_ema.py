"""Lightning's EMAWeightAveraging on the orchestrator: a step is a round, what is averaged the global model."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.command import fit, rows, run
from lib.toy import Capture, Normalized, NormalizedData, Quadratic, ToyData, close, trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedCallback, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedAvgM, GradientHarmonization
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

FIRST = (-0.562, -0.037375)  # FedAvg on T, uniform weights: see tests/callbacks/test_fedavg.py
SECOND = (-0.885993, (-0.38392 + 2 - 2.037375 * 0.857375) / 2)


class Shown(Quadratic):
    """Logs the first weight, and keeps the models that it was validated with."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Tensor] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/w", self.w[0].detach(), batch_size=1)
        self.shown.append(self.w.detach().clone())

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.shown.append(self.w.detach().clone())


class ShownData(ToyData):
    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.zeros(1)))

    test_dataloader = val_dataloader


def test_average_by_hand_is_what_is_validated_and_left() -> None:
    """Decay 3/4: the first round's model w₁ stands for all before, the second's average is 3/4 w₁ + 1/4 w₂."""
    orchestrator = FederatedOrchestrator(Shown())
    run = trainer(FedAvg("uniform"), EMAWeightAveraging(decay=0.75), rounds=2)
    run.fit(orchestrator, datamodule=ShownData())
    average = [0.75 * a + 0.25 * b for a, b in zip(FIRST, SECOND, strict=True)]
    first, second = orchestrator.client.shown  # type: ignore[misc]
    assert close(first, FIRST)
    assert close(second, average)
    assert float(run.callback_metrics["val/w"]) == pytest.approx(average[0], abs=1e-6)
    assert close(orchestrator.params, average)


def anchors(*callbacks: Callback) -> list[Tensor]:
    """The models that the clients of four rounds of T start from."""
    capture = Capture()
    trainer(*callbacks, capture, rounds=4).fit(FederatedOrchestrator(Shown()), datamodule=ShownData())
    return [cohort.anchor for cohort in capture.cohorts]


@pytest.mark.parametrize("rules", [(), (GradientHarmonization(), FedAvgM())], ids=["FedAvg", "GH, FedAvgM"])
def test_training_goes_on_from_the_model_itself(rules: tuple[FederatedCallback, ...]) -> None:
    """Bit for bit the trajectory without averaging, wherever the callback stands."""
    plain = anchors(*rules)
    for callbacks in ([*rules, EMAWeightAveraging(decay=0.75)], [EMAWeightAveraging(decay=0.75), *rules]):
        averaged = anchors(*callbacks)
        assert len(averaged) == 4
        assert all(torch.equal(a, b) for a, b in zip(plain, averaged, strict=True))


def save(
    folder: Path, module: Any, data: FederatedDataModule, *callbacks: Callback, rounds: int, resume: Path | None = None
) -> Path:
    """The checkpoint of a run with momentum on the server, decay 3/4."""
    rules = FedAvgM(0.5), EMAWeightAveraging(decay=0.75), *callbacks, LastCheckpoint()
    run = trainer(*rules, rounds=rounds, default_root_dir=folder, enable_checkpointing=True)
    run.fit(FederatedOrchestrator(module), datamodule=data, ckpt_path=resume)
    return folder / "checkpoints" / "last.ckpt"


class Interrupt(FederatedCallback):
    """Stops in the middle of round 3."""

    def on_client_end(self, orchestrator: Any, run: Any) -> None:
        if run.round == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "data", "interrupted"), [(Shown, ShownData, False), (Normalized, NormalizedData, True)]
)
def test_resumes_bit_for_bit(tmp_path: Path, module: Any, data: Any, interrupted: bool) -> None:
    """After 2 of 4 rounds; the checkpoint holds the average as the model, and beside it the model that trains on."""
    whole = save(tmp_path / "whole", module(), data(), rounds=4)
    if interrupted:
        with pytest.raises(SystemExit):
            save(tmp_path / "parts", module(), data(), Interrupt(), rounds=4)
    else:
        save(tmp_path / "parts", module(), data(), rounds=2)
    last = tmp_path / "parts" / "checkpoints" / "last.ckpt"
    parts = save(tmp_path / "parts", module(), data(), rounds=4, resume=last)
    one, other = (torch.load(path, weights_only=True) for path in (whole, parts))
    for part in ("state_dict", "current_model_state", "averaging_state"):
        assert one[part].keys() == other[part].keys()
        assert all(torch.equal(one[part][name], other[part][name]) for name in one[part])
    assert one["averaging_state"]["n_averaged"] == 4
    assert one["callbacks"]["EMAWeightAveraging"] == other["callbacks"]["EMAWeightAveraging"]
    name = next(iter(one["state_dict"]))
    assert not torch.equal(one["state_dict"][name], one["current_model_state"][name])


def test_buffers(tmp_path: Path) -> None:
    """Running mean: 0.8/3 after round 1 (see NormalizedData), 0.9 of that and again 0.8/3 after round 2.

    Their average is (3/4 + 1.9/4)·0.8/3. The batches counted are 1 and 2, on average an integer: 3/4 + 2/4 is cut off.
    """
    path = save(tmp_path, Normalized(), NormalizedData(), rounds=2)
    content = torch.load(path, weights_only=True)
    average, current = content["state_dict"], content["current_model_state"]
    assert close(current["client.norm.running_mean"], [1.9 * 0.8 / 3])
    assert close(average["client.norm.running_mean"], [(0.75 + 1.9 / 4) * 0.8 / 3])
    counts = [state["client.norm.num_batches_tracked"] for state in (current, average)]
    assert [(count.dtype, int(count)) for count in counts] == [(torch.int64, 2), (torch.int64, 1)]


class Configured(Shown):
    def configure_model(self) -> None:
        """Nothing to add."""


@pytest.mark.parametrize(("module", "expected"), [(Shown, 0), (Configured, 1)])
def test_warns_of_sharding_only_where_the_client_builds_its_layers_late(module: Any, expected: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(EMAWeightAveraging()).fit(FederatedOrchestrator(module()), datamodule=ShownData())
    assert len([w for w in caught if "sharding" in str(w.message)]) == expected


def test_checkpoint_tests_the_average(tmp_path: Path) -> None:
    """In a Trainer of its own, with or without the callback."""
    path = save(tmp_path, Shown(), ShownData(), rounds=3)
    average = torch.load(path, weights_only=True)["state_dict"]["client.w"]
    for callbacks in ([], [EMAWeightAveraging(decay=0.75)]):
        module = Shown()
        trainer(*callbacks).test(FederatedOrchestrator(module), datamodule=ShownData(), ckpt_path=path, verbose=False)
        assert torch.equal(module.shown[0], average)


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped config, stopped after 2 of 3 rounds; ``test`` measures what the last round's validation measured."""
    monkeypatch.chdir(tmp_path)
    short = ("--data.num_clients", 4, "--data.partition.alpha", 1.0)
    fit("--trainer.max_epochs", 3, "--experiment", "whole", *short, config="rules/gh_ema.yaml")
    fit("--trainer.max_epochs", 2, *short, config="rules/gh_ema.yaml")
    result = fit("--trainer.max_epochs", 3, *short, "--ckpt_path", "last", config="rules/gh_ema.yaml")
    assert not [text for text in result.warnings if "WeightAveraging" in text]
    folder = Path("runs", "gh_ema", "version_0")
    assert (folder / "metrics.csv").read_text() == Path("runs/whole/version_0/metrics.csv").read_text()
    last = folder / "checkpoints" / "last.ckpt"
    content = torch.load(last, weights_only=True)
    pairs = [(value, content["current_model_state"][name]) for name, value in content["state_dict"].items()]
    assert not all(torch.equal(average, current) for average, current in pairs)
    assert run("test", "--config", "rules/gh_ema.yaml", *short, "--ckpt_path", last).status == 0
    row = rows(folder / "metrics.csv")[-1]
    assert all(row[f"test/{name}"] == row[f"val/{name}"] for name in ("top1", "top3", "loss"))
