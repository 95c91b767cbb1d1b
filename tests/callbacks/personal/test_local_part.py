"""LocalPart: its argument; what stays with a client is tested with the engine."""

from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import trainer
from lib.two_numbers import served

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedBABU, FedRep, FedROD, LocalPart


def test_each_client_has_its_own_part() -> None:
    """In two rounds the shared number grows by 2 each, the own ones by 1 and by -2 each."""
    assert served(LocalPart(["own"]), rounds=2) == ([4.0, 0.0], [[4.0, 2.0], [4.0, -4.0]])


def test_all_may_stay() -> None:
    """Each client trains alone."""
    assert served(LocalPart(["own", "shared"]), rounds=2) == ([0.0, 0.0], [[2.0, 2.0], [6.0, -4.0]])


def test_only_the_statistics_of_batchnorm_may_stay() -> None:
    """The weights are FedAvg's, whose training does not read the statistics; each client has its own of these."""
    rule = LocalPart(["*.running_*", "*.num_batches_tracked"])
    kept, averaged = FederatedOrchestrator(TinyClassifier()), FederatedOrchestrator(TinyClassifier())
    trainer(rule, rounds=2).fit(kept, datamodule=TinyData(batch_size=4))
    trainer(rounds=2).fit(averaged, datamodule=TinyData(batch_size=4))
    assert torch.equal(kept.params, averaged.params)
    means = [rule.state[f"local.net.0.running_mean/{client}"] for client in range(6)]
    assert len({tuple(mean.tolist()) for mean in means}) == 6
    assert torch.equal(kept.client.net[0].running_mean, torch.zeros(4).double())


@pytest.mark.parametrize("rule", [LocalPart, FedRep, FedBABU, FedROD])
@pytest.mark.parametrize("parts", [[], "own"])
def test_parts_are_a_list_of_names(rule: Any, parts: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"parts must be a list of names such as \[network.fc3\], got"):
        rule(parts)
