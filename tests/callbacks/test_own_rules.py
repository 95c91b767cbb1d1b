"""A user's rule is written like a shipped one: rules in a file of their own do what three shipped ones do."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from lib import own_rules
from lib.own_rules import Ahead, Controlled, Mixture
from lib.rules import TinyClassifier, TinyData, run
from lib.toy import trainer

import fl_lightning
from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator, Server
from fl_lightning.callbacks import APFL, FedACG, FocalLoss, Scaffold


def test_the_file_needs_public_names_alone() -> None:
    imported = {
        (node.module or "", alias.name)
        for node in ast.walk(ast.parse(Path(own_rules.__file__).read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {module for module, _ in imported if module.startswith("fl_lightning")}
    assert modules == {"fl_lightning"}
    assert {name for module, name in imported if module == "fl_lightning"} <= {*fl_lightning.__all__}


@pytest.mark.parametrize(
    ("own", "shipped"),
    [
        (Ahead(0.8, 0.1), FedACG(0.8, 0.1)),
        (Controlled(), Scaffold("I")),
        (Mixture(0.3), APFL(0.3)),
    ],
    ids=["server", "client", "personal"],
)
def test_does_what_the_shipped_rule_does(own: FederatedCallback, shipped: FederatedCallback) -> None:
    """The same models, bit for bit, and the same tensors kept from round to round."""
    plain = run(rounds=3).params
    models = [run(rule, rounds=3).params for rule in (own, shipped)]
    assert torch.equal(*models)
    assert own.state.keys() == shipped.state.keys()
    assert own.state
    for name, kept in own.state.items():
        assert torch.equal(kept, shipped.state[name])
    assert torch.equal(models[0], plain) == isinstance(own, Mixture), "it leaves the global model to other rules"


class Served(FederatedCallback):
    """Collects the models that serve the clients."""

    def on_round_end(self, orchestrator: Server, cohort: Any) -> None:
        assert orchestrator.personal_model is not None
        self.models = [orchestrator.personal_model(client)[0].clone() for client in range(6)]


def test_its_personal_models_are_those_of_the_shipped_rule() -> None:
    both = []
    for rule in (Mixture(0.3), APFL(0.3)):
        served = Served()
        run(rule, served, rounds=2)
        both.append(torch.stack(served.models))
    assert torch.equal(*both)
    assert not torch.equal(both[0][0], both[0][1])


def test_its_metric_is_logged() -> None:
    fit = trainer(Ahead(0.8, 0.0), rounds=2)
    fit.fit(FederatedOrchestrator(TinyClassifier()), datamodule=TinyData(batch_size=4))
    assert float(fit.callback_metrics["ahead/momentum"]) > 0


def test_its_arguments_and_its_company_are_checked() -> None:
    """In one line, as those of a shipped rule."""
    with pytest.raises(ConfigurationError, match=r"^lam must be in \[0, 1\), got 1.0$"):
        Ahead(1.0, 0.0)
    with pytest.raises(ConfigurationError, match="own loss: leave FocalLoss out"):
        run(Controlled(), FocalLoss())
