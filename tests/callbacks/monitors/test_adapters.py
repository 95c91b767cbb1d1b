"""What averaging adapters loses, by hand; and nothing, with A frozen."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lib.adapted import LAYERS, Adapted, average, by_hand, fitted
from lib.command import run
from torch import Tensor

from fl_lightning.callbacks import AggregationError, LocalPart


def test_averages_lose_something() -> None:
    """As much as the loop by hand finds in its last round."""
    made = fitted(AggregationError())
    lost = list[tuple[Tensor, Tensor]]()

    def server(network: Any, clients: list[Any], shares: Tensor) -> None:
        average(network, clients, shares)
        lost.clear()
        for name in LAYERS:
            deltas = [own.get_submodule(name).get_delta_weight("default") for own in clients]
            mean = sum(share * delta for share, delta in zip(shares, deltas, strict=True))
            lost.append((mean - network.get_submodule(name).get_delta_weight("default"), mean))

    by_hand(server)
    error, whole = (torch.cat([pair[at].flatten() for pair in lost]).norm() for at in (0, 1))
    found = float(made.fitted_by.callback_metrics["adapter/aggregation_error"])
    assert found == pytest.approx(float(error / whole), rel=1e-6)
    assert found > 0.01


def test_with_a_frozen_nothing_is_lost() -> None:
    """FFA-LoRA: the mean of B A is the mean of B, times A."""
    made = fitted(AggregationError(), module=Adapted(freeze=("*.lora_A.*",)))
    assert float(made.fitted_by.callback_metrics["adapter/aggregation_error"]) < 1e-15
    assert {name.split(".")[2] for name in made.flat.names} == {"lora_B"}


def test_what_stays_with_the_clients_has_no_mean() -> None:
    made = fitted(AggregationError(), LocalPart(["*.lora_B.*"]))
    assert "adapter/aggregation_error" not in made.fitted_by.callback_metrics


@pytest.mark.parametrize(("adapt", "columns"), [("lora", 1), ("head", 0)])
def test_every_fit_with_adapters_has_the_monitor(
    adapt: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line adds it where the config does not name it."""
    monkeypatch.chdir(tmp_path)
    for number, more in enumerate([(), ("--trainer.callbacks", "ConflictMonitor")]):
        options = ("--model.client.network.adapt", adapt, "--trainer.max_epochs", "1", "--trainer.devices", "1")
        assert run("fit", "--config", "adapters/vit_lora.yaml", *options, *more).status == 0
        header = Path(f"runs/vit_lora/version_{number}/metrics.csv").read_text().splitlines()[0]
        assert header.split(",").count("adapter/aggregation_error") == columns
