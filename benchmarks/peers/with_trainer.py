"""Train the case with plain Lightning: a new Trainer fits each client in each round, then the parameters are averaged.

``Trainer(barebones=True)`` is Lightning's own setting for measuring what it costs.
"""

import copy
import logging
import warnings

import torch
import torch.nn.functional as F
from case import BATCH, CLASSES, INPUTS, RATE, Stopwatch, clients, rounds
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Module(LightningModule):
    """Logistic regression."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, CLASSES)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    datasets = [TensorDataset(*pair) for pair in zip(*map(torch.from_numpy, clients()), strict=True)]
    module, watch = Module(), Stopwatch()
    state = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
    watch.stamp()
    for _ in range(rounds()):
        trained = []
        for dataset in datasets:
            module.load_state_dict(state)
            Trainer(barebones=True, max_epochs=1, accelerator="cpu").fit(
                module, DataLoader(dataset, batch_size=BATCH, shuffle=True)
            )
            trained.append(copy.deepcopy(module.state_dict()))
        state = {name: torch.stack([client[name] for client in trained]).mean(0) for name in state}
        watch.stamp()
    watch.report(state["layer.weight"], state["layer.bias"])
