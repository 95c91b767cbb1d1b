"""Ditto by hand, and the second training that it takes."""

from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import close, trainer
from lib.two_numbers import served

from fl_lightning import FederatedCallback, FederatedOrchestrator, LocalRun, Server
from fl_lightning.callbacks import Ditto
from fl_lightning.engine.training import one_by_one


def test_the_pull_is_to_the_global_model_of_the_round() -> None:
    """Two steps of 1 with λ = ½: v = 1, then 1 + 1 - ½ · 1 = 1.5. The models 2 and 6, 2 and -4 average to (4, -1).

    From 1.5: + 1 - ½ (1.5 - 4) = 3.75, + 1 - ½ (3.75 - 4) = 4.875; own: 1.5 + 1 - ½ (1.5 + 1) = 1.25, then
    1.25 + 1 - ½ (1.25 + 1) = 1.125.
    """
    assert served(Ditto(0.5), steps=2) == ([4.0, -1.0], [[1.5, 1.5], [4.5, -3.0]])
    model, (first, _) = served(Ditto(0.5), rounds=2, steps=2)
    assert model == [8.0, -2.0]
    assert first == [4.875, 1.125]


class Twice(FederatedCallback):
    """Trains each client again, from where it began."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        before = run.params.clone(), [buffer.clone() for buffer in orchestrator.read_buffers() if buffer is not None]
        self.keep(run, "again", orchestrator.train_again(run, run.anchor))
        self.keep(run, "once", run.params)
        assert torch.equal(run.params, before[0])
        assert all(map(torch.equal, filter(lambda each: each is not None, orchestrator.read_buffers()), before[1]))


@pytest.mark.parametrize("settings", [{}, {"local_epochs": 2, "gradient_clip_val": 0.1, "local_lr_decay": 0.5}])
def test_the_same_training_again_ends_in_the_same_bits(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the batches of the first training; with others it ends elsewhere. The run is as without it."""
    ends = []
    for purpose in ("batches", "again"):
        monkeypatch.setattr(one_by_one, "AGAIN", purpose)
        rule, orchestrator = Twice(), FederatedOrchestrator(TinyClassifier(), on_bad_update="raise", **settings)
        trainer(rule, rounds=2).fit(orchestrator, datamodule=TinyData(batch_size=4))
        ends.append(orchestrator.params.clone())
        alike = [torch.equal(rule.state[f"again/{k}"], rule.state[f"once/{k}"]) for k in range(6)]
        assert all(alike) if purpose == "batches" else not any(alike[1:]), "client 0 has one batch"
    plain = FederatedOrchestrator(TinyClassifier(), **settings)
    trainer(rounds=2).fit(plain, datamodule=TinyData(batch_size=4))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], plain.params)


def test_without_a_pull_a_client_trains_alone() -> None:
    _, models = served(Ditto(0.0), rounds=3)
    assert close(torch.tensor(models), [[3.0, 3.0], [9.0, -6.0]])
