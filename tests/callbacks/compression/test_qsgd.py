"""QSGD: its levels, its mean, its bytes, and the bytes of all compressors on a network."""

import csv
from pathlib import Path

import pytest
import torch
from lib.command import run
from lib.toy import Capture, GivenData, Linear, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import QSGD


def test_levels_and_the_mean() -> None:
    """Of (3, -4) with two levels: ‖v‖ = 5, so that 3 becomes 2.5 or 5 and -4 becomes -2.5 or -5, with the mean kept."""
    capture = Capture()
    data = GivenData(torch.tensor([[-3.0, 4.0]] * 20, dtype=torch.float64))
    trainer(QSGD(2), capture, rounds=50).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    sent = torch.cat([cohort.deltas for cohort in capture.cohorts])
    assert set(sent[:, 0].tolist()) == {2.5, 5.0}
    assert set(sent[:, 1].tolist()) == {-2.5, -5.0}
    assert sent.mean(0).tolist() == pytest.approx([3.0, -4.0], abs=0.15)  # of 1,000 draws, deviations 1 and 1.22


def test_a_zero_update() -> None:
    capture = Capture()
    data = GivenData(torch.zeros(1, 2, dtype=torch.float64))
    trainer(QSGD(), capture).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    assert capture.cohort.deltas.tolist() == [[0.0, 0.0]]


def test_levels() -> None:
    with pytest.raises(ConfigurationError, match="levels must be at least 1, got 0"):
        QSGD(0)


@pytest.mark.parametrize(
    ("rule", "expected"), [("topk", 13_376), ("signsgd", 20_902), ("qsgd", 125_388), ("randomk", 1_672 * 4)]
)
def test_bytes_of_the_2nn(rule: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 167,178 parameters 1 % are 1,672, of 4 + 4 bytes, or of 4; a bit each and 4 bytes; 6 bits each and 4 bytes."""
    monkeypatch.chdir(tmp_path)
    result = run("fit", "--config", f"rules/{rule}.yaml", "--trainer.max_epochs", 1, "--experiment", rule)
    assert result.status == 0, result.err
    with Path("runs", rule, "version_0", "metrics.csv").open() as file:
        assert float(next(iter(csv.DictReader(file)))["bytes/up"]) == 20 * expected
