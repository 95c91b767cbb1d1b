"""client_parallel, when it is chosen, and that the number of devices changes no bit."""

from pathlib import Path

import pytest
from command import TINY, fit_on
from lightning import Trainer
from lightning.pytorch.strategies import StrategyRegistry
from resumed import assert_same

from fl_lightning.engine.devices.strategy import ClientParallelStrategy

RULES = [
    "FedAvg",
    "GradientHarmonization",
    "DominantGradientCorrection",
    "FedLAW",
    "Scaffold",
    "MOON",
    "FedGAMCV",
    "FedDyn",
    "FedBE",
    "CoordinateMedian",
    '{"class_path": "CentredClipping", "init_args": {"threshold": 1.0}}',
    '{"class_path": "ALIE", "init_args": {"num_byzantine": 2}}',
]


def test_it_is_known_by_name() -> None:
    assert "client_parallel" in StrategyRegistry.available_strategies()
    trainer = Trainer(strategy="client_parallel", devices=2, accelerator="cpu", logger=False)
    assert isinstance(trainer.strategy, ClientParallelStrategy)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_devices_stops_and_memory_change_no_bit(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One, two and three processes, five of nine clients a round; updates in memory and in a file; a stop after two of
    four rounds, which goes on with another number of processes.
    """
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    settings = ["--trainer.callbacks", rule, "--data.num_clients", 9, "--data.participation", 5]
    settings += ["--data.proxy_per_class", 2, "--data.partition.alpha", 1.0]
    fit_on(1, "--experiment", "one", *settings, "--trainer.max_epochs", 4)
    fit_on(2, "--experiment", "two", *settings, "--trainer.max_epochs", 4, "--model.cohort_memory", "1KiB")
    fit_on(3, "--experiment", "three", *settings, "--trainer.max_epochs", 4)
    fit_on(3, "--experiment", "mapped", *settings, "--trainer.max_epochs", 2, "--model.cohort_memory", "1KiB")
    fit_on(1, "--experiment", "mapped", *settings, "--trainer.max_epochs", 4, "--ckpt_path", "last")
    first, *others = (Path("runs", name, "version_0") for name in ("one", "two", "three", "mapped"))
    for other in others:
        assert_same(first / "checkpoints/last.ckpt", other / "checkpoints/last.ckpt")
        assert (first / "metrics.csv").read_text() == (other / "metrics.csv").read_text()
