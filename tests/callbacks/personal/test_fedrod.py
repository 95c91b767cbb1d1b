"""FedROD: balanced softmax by hand, and a personal head on the global model."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import trainer
from lib.two_numbers import served

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, FederatedOrchestrator, Server
from fl_lightning.callbacks import FedROD


class Look(FederatedCallback):
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        assert orchestrator.personal_model is not None
        self.models = [orchestrator.personal_model(client)[0] for client in range(6)]


def test_only_the_head_is_a_clients_own() -> None:
    """The last 15 parameters; the global model is the one without clients' heads."""
    rule, look = FedROD(["net.1"]), Look()
    orchestrator = FederatedOrchestrator(TinyClassifier(), on_bad_update="raise")
    trainer(rule, look, rounds=3).fit(orchestrator, datamodule=TinyData(batch_size=4))
    for client, model in enumerate(look.models):
        assert torch.equal(model[:8], orchestrator.params[:8])
        assert torch.equal(model[8:], orchestrator.params[8:] + rule.state[f"head/{client}"])
        assert rule.state[f"head/{client}"].norm() > 0.01


def test_balanced_softmax() -> None:
    """Of 3 and 1 examples, at equal logits: ln(3 + 1) for the rare class, ln(4 / 3) for the other."""
    rule = FedROD(["net.1"])
    rule._log_counts = torch.tensor([[3.0, 1.0]]).log()
    run: Any = SimpleNamespace(client=0)
    losses = [
        float(rule.loss(run, None, {"logits": torch.zeros(1, 2), "targets": torch.tensor([label])}, torch.zeros(())))
        for label in (1, 0)
    ]
    assert losses == pytest.approx([math.log(4), math.log(4 / 3)])


def test_needs_class_counts() -> None:
    with pytest.raises(ConfigurationError, match=r"GivenData.class_counts\(\) returns None: define it, or remove"):
        served(FedROD(["own"]))
