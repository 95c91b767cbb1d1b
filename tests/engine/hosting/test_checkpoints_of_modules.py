"""What a checkpoint holds of a module that leaves tensors out of it or renames them, and which checkpoints fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.toy import trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FedAvgM
from fl_lightning.engine.hosting.saving import check_orders, check_state


class Adapted(LightningModule):
    """A frozen backbone, an adapter that learns, and a batch normalisation with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"rank": 4, "layers": [1, 2], "network": nn.Tanh()})
        torch.manual_seed(1)
        self.backbone = nn.Linear(4, 4).requires_grad_(False)
        self.norm, self.adapter = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.adapter(self.norm(self.backbone(batch[0]))), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Stripping(Adapted):
    """Deletes the backbone from checkpoints, as LoRA users do."""

    strict_loading = False  # type: ignore[assignment]  # a plain attribute overrides Lightning's property

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name in ("backbone.weight", "backbone.bias"):
            del checkpoint["state_dict"][name]


class Renaming(Adapted):
    """Replaces the state_dict by one under other names, takes these back on loading, and adds an entry of its own."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"] = {f"v2.{name}": value for name, value in checkpoint["state_dict"].items()}
        checkpoint["seen"] = sorted(checkpoint["hyper_parameters"])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert checkpoint["seen"] == ["layers", "rank"]
        saved = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name.removeprefix("v2."): value for name, value in saved.items()}


class OwnState(Adapted):
    """Leaves the backbone out by a state_dict and a load_state_dict of its own."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]  # fewer arguments than torch's, as users write it
        return {name: value for name, value in super().state_dict().items() if not name.startswith("backbone")}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:  # type: ignore[override]
        missing, unexpected = super().load_state_dict(state_dict, strict=False)
        assert sorted(missing) == ["backbone.bias", "backbone.weight"]
        assert not unexpected


class Data(FederatedDataModule):
    num_clients = 3

    def client_dataset(self, client: int) -> Dataset[Any]:
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(client))
        return TensorDataset(x, torch.arange(6) % 3)


def train(make: type[LightningModule], rounds: int, resume: Path | None = None) -> tuple[Any, Any]:
    """The client module and its Trainer after some rounds with server momentum."""
    orchestrator, run = FederatedOrchestrator(make()), trainer(FedAvgM(0.5), rounds=rounds)
    run.fit(orchestrator, datamodule=Data(batch_size=3), ckpt_path=resume)
    return orchestrator.client, run


def everything(module: nn.Module) -> dict[str, Tensor]:
    return dict(nn.Module.state_dict(module))


ADAPTER = ["adapter.bias", "adapter.weight"]
NORM = [f"norm.{name}" for name in ("bias", "num_batches_tracked", "running_mean", "running_var", "weight")]
BACKBONE = ["backbone.bias", "backbone.weight"]
SAVED = {
    Adapted: [f"client.{name}" for name in (*ADAPTER, *BACKBONE, *NORM)],
    Stripping: [f"client.{name}" for name in (*ADAPTER, *NORM)],
    Renaming: [f"client.v2.{name}" for name in (*ADAPTER, *BACKBONE, *NORM)],
    OwnState: [f"client.{name}" for name in (*ADAPTER, *NORM)],
}


@pytest.mark.parametrize("make", SAVED)
def test_stopped_and_resumed_is_uninterrupted(make: type[LightningModule], tmp_path: Path) -> None:
    whole, _ = train(make, rounds=4)
    _, run = train(make, rounds=2)
    run.save_checkpoint(tmp_path / "stopped.ckpt")
    saved = torch.load(tmp_path / "stopped.ckpt")  # torch's default: no code in the file
    assert sorted(saved["state_dict"]) == SAVED[make]
    resumed, _ = train(make, rounds=4, resume=tmp_path / "stopped.ckpt")
    assert all(torch.equal(value, everything(resumed)[name]) for name, value in everything(whole).items())
    assert not torch.equal(resumed.adapter.weight, make().adapter.weight)  # type: ignore[union-attr]


def test_plain_hyperparameters_are_in_the_checkpoint(tmp_path: Path) -> None:
    """The network is none: torch.load would refuse the whole checkpoint."""
    train(Adapted, rounds=1)[1].save_checkpoint(tmp_path / "one.ckpt")
    assert torch.load(tmp_path / "one.ckpt")["hyper_parameters"] == {"rank": 4, "layers": [1, 2]}


def test_versions_of_the_modules_states_stay(tmp_path: Path) -> None:
    """A module whose state had another form in version 1 reads the version from the metadata of a state_dict."""
    train(Adapted, rounds=1)[1].save_checkpoint(tmp_path / "one.ckpt")
    metadata = torch.load(tmp_path / "one.ckpt")["state_dict"]._metadata
    assert metadata["client.norm"] == {"version": 2}
    assert list(metadata) == ["client", "client.backbone", "client.norm", "client.adapter"]


class Strict(Stripping):
    strict_loading = True  # type: ignore[assignment]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A tensor that is missing where strict_loading is on."""
    train(Stripping, rounds=1)[1].save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(ConfigurationError, match=r"backbone\.weight has no such tensor there and \(4, 4\) here; start"):
        train(Strict, rounds=2, resume=tmp_path / "one.ckpt")


OWN = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({**OWN, "weight": torch.zeros(3, 2)}, r"weight has \(3, 2\) there and \(2, 3\) here"),
    ({"weight": OWN["weight"]}, r"bias has no such tensor there and \(2,\) here"),
    ({**OWN, "scale": torch.zeros(())}, r"scale has \(\) there and no such tensor here"),
]


@pytest.mark.parametrize(("saved", "difference"), OTHERS)
def test_tensors_of_another_model_are_named(saved: dict[str, Any], difference: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the checkpoint is of another model: {difference}; start with"):
        check_state(OWN, saved)


def test_only_shapes_count_where_names_may_differ() -> None:
    """Values and dtypes may differ, too; the first tensor of another shape is refused."""
    check_state(OWN, {name: value.double() + 1 for name, value in OWN.items()})
    check_state(OWN, {"weight": torch.ones(2, 3), "scale": torch.zeros(())}, strict=False)
    with pytest.raises(ConfigurationError, match=OTHERS[0][1]):
        check_state(OWN, OTHERS[0][0], strict=False)


def test_parameters_in_another_order_are_refused() -> None:
    """A matrix stored by columns and one by rows; a checkpoint without orders is accepted."""
    check_orders([None, [1, 0]], [None, [1, 0]])
    check_orders([None, [1, 0]], None)
    for saved in ([None, None], [None], [[1, 0], None]):
        with pytest.raises(ConfigurationError, match="in memory in another order than in the checkpoint"):
            check_orders([None, [1, 0]], saved)
