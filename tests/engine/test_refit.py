"""Another fit of an orchestrator: the Trainer counts the rounds."""

import copy

import torch
from toy import Quadratic, ToyData, trainer

from fl_lightning import FederatedOrchestrator


def test_a_new_trainer_begins_with_round_1() -> None:
    """From the parameters of the first fit, with the seeds of the first round."""
    orchestrator = FederatedOrchestrator(Quadratic())
    trainer(rounds=3).fit(orchestrator, datamodule=ToyData())
    copied = copy.deepcopy(orchestrator)
    start = orchestrator.client.w.detach().clone()
    run = trainer(rounds=2)
    run.fit(orchestrator, datamodule=ToyData())
    assert orchestrator.rounds_done == run.current_epoch == run.global_step == 2
    assert not torch.equal(orchestrator.client.w, start)
    fresh = FederatedOrchestrator(copied.client)
    trainer(rounds=2).fit(fresh, datamodule=ToyData())
    assert torch.equal(fresh.client.w, orchestrator.client.w)  # type: ignore[arg-type]  # a parameter


def test_the_same_trainer_goes_on_with_the_next_round() -> None:
    """Plain federated averaging keeps nothing but the model: two and two rounds are four."""
    orchestrator, whole = FederatedOrchestrator(Quadratic()), FederatedOrchestrator(Quadratic())
    run = trainer(rounds=2)
    run.fit(orchestrator, datamodule=ToyData())
    run.fit(orchestrator, datamodule=ToyData())
    assert orchestrator.rounds_done == run.current_epoch == 2, "its rounds are done"
    run.fit_loop.max_epochs = 4
    run.fit(orchestrator, datamodule=ToyData())
    assert orchestrator.rounds_done == run.current_epoch == run.global_step == 4
    trainer(rounds=4).fit(whole, datamodule=ToyData())
    assert torch.equal(whole.client.w, orchestrator.client.w)  # type: ignore[arg-type]  # a parameter
