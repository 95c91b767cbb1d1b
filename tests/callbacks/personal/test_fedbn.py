"""FedBN: the layers that stay."""

import pytest
from lib.rules import TinyClassifier, TinyData
from lib.toy import trainer
from lib.two_numbers import served

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedBN


def test_all_of_batchnorm_stays_and_nothing_else() -> None:
    rule = FedBN()
    trainer(rule).fit(FederatedOrchestrator(TinyClassifier()), datamodule=TinyData(batch_size=4))
    kept = {name.removesuffix("/0") for name in rule.state if name.endswith("/0")}
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    assert kept == {"local", *(f"local.net.0.{name}" for name in buffers)}
    assert rule.state["local/0"].shape == (8,)


def test_a_module_without_batchnorm() -> None:
    with pytest.raises(ConfigurationError, match="Two has none: use a network with BatchNorm, or LocalPart"):
        served(FedBN())
