"""Graphs: eight laboratories learn which molecules react, and keep their molecules to themselves.

    python examples/graphs.py
    python examples/graphs.py --rounds 20

Shows batches of graphs of different size: `collate_fn` puts a batch's graphs into one adjacency matrix of diagonal
blocks, and the graph convolution is plain torch. The graphs are random trees with some rings. A graph reacts if
somewhere an atom of kind 0 is bound to an atom of kind 1, which no count of atoms tells. Laboratories differ in the
size of their molecules and in the share that reacts. Two rules of the server, FedNova and GradientHarmonization, act
one after the other.
"""

import argparse
from typing import NamedTuple

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics.classification import BinaryAccuracy

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import ConflictMonitor, FedNova, GradientHarmonization

QUIET = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False}
KINDS = 4  # of atoms


class Graph(NamedTuple):
    """Kinds of n atoms (n,), bonds (n, n) that are 0 or 1, and whether the graph reacts."""

    atoms: Tensor
    bonds: Tensor
    reacts: bool


def molecule(size: int, draw: np.random.Generator) -> Graph:
    """Draw a tree of ``size`` atoms with a ring or two."""
    bonds = np.zeros((size, size), dtype=np.float32)
    for atom in range(1, size):
        bonds[atom, draw.integers(atom)] = 1
    for _ in range(2):
        bonds[tuple(draw.choice(size, 2, replace=False))] = 1
    bonds = np.maximum(bonds, bonds.T)
    atoms = draw.integers(KINDS, size=size)
    return Graph(torch.tensor(atoms), torch.tensor(bonds), bool(bonds[atoms == 0][:, atoms == 1].any()))


def molecules(laboratory: int, count: int, seed: int) -> list[Graph]:
    """Draw a laboratory's molecules: of 4 to 8 atoms in laboratory 0, of 11 to 15 in laboratory 7."""
    draw = np.random.default_rng([seed, laboratory])
    graphs = []
    for reacts in draw.random(count) < 0.2 + 0.6 * laboratory / 7:
        while (graph := molecule(laboratory + int(draw.integers(4, 9)), draw)).reacts != reacts:
            pass
        graphs.append(graph)
    return graphs


def joined(graphs: list[Graph]) -> dict[str, Tensor]:
    """Make a batch of B graphs with n atoms in all: one graph without bonds between the parts."""
    return {
        "reacts": torch.tensor([float(graph.reacts) for graph in graphs]),  # first: its length is the batch's size
        "atoms": torch.cat([graph.atoms for graph in graphs]),
        "bonds": torch.block_diag(*[graph.bonds for graph in graphs]),
        "sizes": torch.tensor([len(graph.atoms) for graph in graphs]),
    }


class Chemist(lightning.LightningModule):
    """Two graph convolutions, the maximum over the atoms of a graph, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(KINDS, 16), nn.Linear(16, 16)])
        self.neighbours = nn.ModuleList([nn.Linear(KINDS, 16, bias=False), nn.Linear(16, 16, bias=False)])
        self.head = nn.Linear(16, 1)
        self.accuracy = BinaryAccuracy()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        atoms = nn.functional.one_hot(batch["atoms"], KINDS).to(batch["bonds"])
        for own, neighbours in zip(self.own, self.neighbours, strict=True):
            atoms = torch.relu(own(atoms) + neighbours(batch["bonds"] @ atoms))
        graphs = torch.stack([part.amax(0) for part in atoms.split(batch["sizes"].tolist())])
        return self.head(graphs).squeeze(1)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self(batch), batch["reacts"])

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.accuracy(self(batch), batch["reacts"])
        self.log("val/accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main(rounds: int) -> None:
    """Train, and print the accuracy before and after."""
    lightning.seed_everything(1, verbose=False)
    sizes = [60 + 20 * laboratory for laboratory in range(8)]
    train = [graph for laboratory, size in enumerate(sizes) for graph in molecules(laboratory, size, seed=0)]
    held_out = [graph for laboratory in range(8) for graph in molecules(laboratory, 20, seed=1)]
    owners = [laboratory for laboratory, size in enumerate(sizes) for _ in range(size)]
    data = FederatedDataModule.from_loaders(train, val=held_out, partition=owners, batch_size=20, collate_fn=joined)
    orchestrator = FederatedOrchestrator(Chemist(), local_epochs=2)
    trainer = lightning.Trainer(
        max_epochs=rounds,
        accelerator="cpu",
        callbacks=[FedNova(), GradientHarmonization(), ConflictMonitor()],
        **QUIET,
    )
    before = trainer.validate(orchestrator, datamodule=data, verbose=False)[0]["val/accuracy"]
    trainer.fit(orchestrator, datamodule=data)
    names = ("val/accuracy", "conflict/ratio", "conflict/ratio_after")
    after, conflict, left = (float(trainer.callback_metrics[name]) for name in names)
    print(f"accuracy: {before:.1%} before training, {after:.1%} after {rounds} rounds")
    print(f"conflicting pairs of updates in the last round: {conflict:.0%}, {left:.0%} after harmonization")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    torch.set_num_threads(1)
    main(parser.parse_args().rounds)
