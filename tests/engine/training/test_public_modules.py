"""Modules of public packages, unmodified, each run if installed: docs/reference/modules.md has the table.

None of these packages is a dependency. To repeat the trial: ``pip install chemprop lightly pytorch-forecasting
scvi-tools torch-geometric torchgeo transformers yacs``, then run the slow
tests of this file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from zoo.data import SIZES
from zoo.runs import differences, ends_where_the_trainer_does, federated, in_order

from fl_lightning import FederatedDataModule

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
N = sum(SIZES)


@dataclass(frozen=True)
class Public:
    """A row like those of zoo/table.py, of a function that returns a module, N examples and their ``collate_fn``."""

    make: Callable[[], tuple[Any, Any, Any]]
    sizes = SIZES

    def module(self) -> Any:
        torch.manual_seed(1)
        return self.make()[0]

    def wrap(self, module: Any) -> Any:
        return module

    def datamodule(self, sizes: Any = None, clients: Any = None, **settings: Any) -> FederatedDataModule:
        _, examples, collate = self.make()
        parts = np.split(np.arange(sum(sizes or SIZES)), np.cumsum(sizes or SIZES)[:-1])
        val = DataLoader(examples, batch_size=4, collate_fn=collate, generator=torch.Generator())
        data = FederatedDataModule.from_loaders(
            examples, val, batch_size=4, collate_fn=collate, partition=[part.tolist() for part in parts], **settings
        )
        data.cohort = lambda round: list(clients or range(len(parts)))  # type: ignore[method-assign]
        return data


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def molecules() -> Any:
    from chemprop import data, models, nn

    net = nn.BondMessagePassing(d_h=16), nn.MeanAggregation(), nn.RegressionFFN(input_dim=16, hidden_dim=8)
    points = [data.MoleculeDatapoint.from_smi("C" * (1 + k % 7) + "O", [k / 9]) for k in range(N)]
    return models.MPNN(*net, batch_norm=True), data.MoleculeDataset(points), data.collate_batch


def forecasts() -> Any:
    import pandas
    import pytorch_forecasting as pf

    frame = pandas.DataFrame({"t": np.arange(N + 9), "y": np.sin(np.arange(N + 9)), "group": "0"})
    sizes = {"max_encoder_length": 8, "min_encoder_length": 8, "max_prediction_length": 2}
    data = pf.TimeSeriesDataSet(frame, "t", "y", ["group"], time_varying_unknown_reals=["y"], **sizes)
    kwargs = {"hidden_size": 8, "attention_head_size": 1, "hidden_continuous_size": 4}
    return pf.TemporalFusionTransformer.from_dataset(data, **kwargs), data, data._collate_fn


def cells() -> Any:
    from scvi.module import VAE
    from scvi.train import TrainingPlan

    counts = draw(N, 20).exp().round()
    examples = [{"X": x, "batch": torch.tensor([0]), "labels": torch.tensor([0])} for x in counts]
    return TrainingPlan(VAE(n_input=20, n_hidden=16, n_latent=4)), examples, None


def graphs() -> Any:
    from torch_geometric.data import Batch, Data
    from torch_geometric.graphgym.config import cfg, set_cfg
    from torch_geometric.graphgym.model_builder import create_model

    set_cfg(cfg)
    cfg.dataset.task = cfg.gnn.head = "graph"
    cfg.accelerator = "cpu"
    ring = torch.stack([torch.arange(5), torch.arange(5).roll(1)])
    data = [Data(x=x, edge_index=ring, y=torch.tensor([k % 3])) for k, x in enumerate(draw(N, 5, 4))]
    return create_model(dim_in=4, dim_out=3), data, Batch.from_data_list


def segments() -> Any:
    from torchgeo.trainers import SemanticSegmentationTask

    examples = [{"image": x, "mask": x[0].gt(0).long()} for x in draw(N, 3, 32, 32)]
    return SemanticSegmentationTask(backbone="resnet18", task="multiclass", num_classes=2), examples, None


MAKERS = {
    "chemprop": molecules,
    "pytorch_forecasting": forecasts,
    "scvi": cells,
    "torch_geometric": graphs,
    "torchgeo": segments,
}


@pytest.mark.parametrize("package", MAKERS)
def test_a_public_module(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client against ``Trainer.fit``; clients in another order; a stop after round 1: the same bits."""
    pytest.importorskip(package)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # hyper-parameters of some are objects
    row: Any = Public(MAKERS[package])
    # scvi draws random numbers in validation, which the Trainer runs between the epochs, and a client does not
    flags: Any = {"limit_val_batches": 0} if package == "scvi" else {}
    ends_where_the_trainer_does(row, make_flags=lambda: flags)
    expected = in_order(row)[0]
    other = {"clients": [2, 0, 3, 1], "clients_per_batch": 4}
    assert not differences(expected, federated(row, data=other))
    federated(row, rounds=1, end=tmp_path / "round_1.ckpt")
    assert not differences(expected, federated(row, start=tmp_path / "round_1.ckpt"))
