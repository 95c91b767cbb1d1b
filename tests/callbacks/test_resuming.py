"""What rules keep from round to round: a stopped run goes on as if it had not been stopped, and a second fit anew."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lib.rules import CLIENT_RULES, PERSONAL, SERVER_RULES, TinyClassifier, TinyData
from lib.toy import trainer
from torch import Tensor

from fl_lightning import FederatedCallback, FederatedOrchestrator
from fl_lightning.callbacks import ConflictMonitor, FedBE, FedFV, Scaffold
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

RULES = {
    **SERVER_RULES,
    **CLIENT_RULES,
    **PERSONAL,
    "FedBE, two samples": lambda: FedBE(num_samples=2, epochs=2),
    "FedFV, three rounds": lambda: FedFV(tau=3),
    "Scaffold, option I": lambda: Scaffold("I"),
}


def run(
    folder: Path, rule: FederatedCallback, rounds: int, *monitors: Any, resume: bool = False, **settings: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Five of the six clients a round: the model, and what the rule keeps."""
    orchestrator = FederatedOrchestrator(TinyClassifier(), on_bad_update="raise", **settings)
    saving = {"default_root_dir": folder, "enable_checkpointing": True}
    last = folder / "checkpoints" / "last.ckpt" if resume else None
    fit = trainer(*monitors, rule, LastCheckpoint(), rounds=rounds, **saving)
    fit.fit(orchestrator, datamodule=TinyData(batch_size=4, participation=5), ckpt_path=last)
    return orchestrator.params.clone(), {name: rule.state[name].clone() for name in rule.state}


QUICK = ("GradientHarmonization", "FedAvgM", "FedAdagrad", "FedYogi", "FedAdam", "CentredClipping", "ServerFT", "FedDF")
QUICK += ("FedBE, two samples", "FedFV, three rounds", "MOON", "Scaffold", "Scaffold, option I", "FedDyn", "FedSMOO")
QUICK += ("FedGAMCV", "LocalPart", "FedBN", "Ditto")  # those that keep something, or draw random numbers


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in RULES]
)
def test_a_stopped_run_and_a_second_fit_change_no_bit(name: str, tmp_path: Path) -> None:
    """Stopped after two of three rounds, watched, and with the states of clients, if there are any, on disk."""
    whole, kept = run(tmp_path / "whole", rule := RULES[name](), 3)
    where = {"client_states": "disk" if any("/" in state for state in kept) else "memory"}
    stopped, _ = run(tmp_path / "parts", RULES[name](), 2, ConflictMonitor(), **where)
    resumed, restored = run(tmp_path / "parts", RULES[name](), 3, ConflictMonitor(), resume=True, **where)
    assert torch.equal(resumed, whole)
    assert not torch.equal(resumed, stopped)
    assert restored.keys() == kept.keys()
    assert all(torch.equal(restored[state], kept[state]) for state in kept)
    assert torch.equal(run(tmp_path / "again", rule, 2)[0], stopped)


def test_the_state_of_a_client_is_kept_on_disk(tmp_path: Path) -> None:
    """And these rules do keep something: what the test above compares."""
    _, kept = run(tmp_path, Scaffold(), 2, client_states="disk")
    assert {path.parent.name for path in tmp_path.rglob("*.safetensors")} == {"c"}
    assert "c" in kept
    assert len(kept) > 5
