"""A classifier of fifteen numbers in float64, small enough to be trained by released code apart, and clients for it."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedDataModule

INPUTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)


class Fifteen(LightningModule):
    """Two inputs, two tanh units, three classes, under SGD with the rate ½; the start is the sine of -1 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).double()
        self.head = nn.Linear(2, 3).double()
        nn.utils.vector_to_parameters(torch.linspace(-1, 1, 15, dtype=torch.float64).sin(), self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        logits = self(batch[0])
        return {"loss": nn.functional.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Labelled(FederatedDataModule):
    """Clients with the same four inputs, by default all in one batch, and labels of their own.

    Args:
        labels: four labels for each client.
        batch_size: number of inputs in a batch.
        settings: of FederatedDataModule.
    """

    def __init__(self, *labels: Sequence[int], batch_size: int = 4, **settings: Any) -> None:
        super().__init__(batch_size=batch_size, **settings)
        self.num_clients, self.labels = len(labels), torch.tensor(labels)

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(INPUTS, self.labels[client])
