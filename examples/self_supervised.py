"""Self-supervised learning: ten clients learn to see without labels (MoCo v3, Chen et al., 2021).

    python examples/self_supervised.py
    python examples/self_supervised.py --rounds 40

Shows two views of every image and a momentum teacher. The teacher is frozen and follows the student in a hook; the
rounds average it as they average float buffers, so every client begins with the global teacher. At the end a linear
probe, trained on five labelled images of each class, judges the 16 features of an image.
"""

import argparse
from copy import deepcopy

import lightning
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import ConflictMonitor
from fl_lightning.datamodules import Digits, Dirichlet

QUIET = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False}


def view(images: Tensor) -> Tensor:
    """Rotate, scale and shift every image (B, 1, 8, 8) at random, and add noise."""
    turn, size = 0.5 * torch.rand(len(images)) - 0.25, 0.8 + 0.4 * torch.rand(len(images))
    shift = 0.6 * torch.rand(len(images), 2) - 0.3
    cos, sin = turn.cos() * size, turn.sin() * size
    rows = torch.stack([torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1)
    grid = F.affine_grid(rows.to(images), list(images.shape), align_corners=False)
    seen = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return seen + 0.2 * torch.randn_like(seen)


class MomentumContrast(lightning.LightningModule):
    """A student that tells, from one view of an image, which of its slow copy's features are the same image's."""

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = momentum
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 16),
        )
        self.projector = nn.Sequential(nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))
        self.predictor = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.student = nn.Sequential(self.encoder, self.projector)
        self.teacher = deepcopy(self.student).requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder(images)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        one, other = view(batch[0]), view(batch[0])
        return self.contrast(one, other) + self.contrast(other, one)

    def contrast(self, asked: Tensor, taught: Tensor) -> Tensor:
        """Return the cross entropy of finding each image of one view among the teacher's images of the other view."""
        with torch.no_grad():
            keys = F.normalize(self.teacher(taught), dim=1)
        queries = F.normalize(self.predictor(self.student(asked)), dim=1)
        return F.cross_entropy(queries @ keys.T / 0.5, torch.arange(len(keys), device=keys.device))

    def on_train_batch_end(self, *_: object) -> None:
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                slow.lerp_(fast, 1 - self.momentum)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=5e-3)


@torch.no_grad()
def probe(module: MomentumContrast, data: Digits) -> float:
    """Train a linear classifier on the features of five images of each class; return its accuracy on the test set."""
    (images, labels), (test_images, test_labels) = data.load(train=True), data.load(train=False)
    chosen = torch.cat([(labels == label).nonzero()[:5, 0] for label in range(10)])
    inputs = ((x / 255 - data.mean[0]) / data.std[0] for x in (images[chosen], test_images))
    known, unknown = (F.normalize(module(x), dim=1).numpy() for x in inputs)
    return float(LogisticRegression(C=10, max_iter=1000).fit(known, labels[chosen]).score(unknown, test_labels))


def main(rounds: int) -> None:
    """Train without labels, and print the accuracy of a linear probe before and after."""
    lightning.seed_everything(1, verbose=False)
    data = Digits(num_clients=10, partition=Dirichlet(1.0), batch_size=64, drop_last=True, seed=1)
    orchestrator = FederatedOrchestrator(MomentumContrast(), local_epochs=2)
    before = probe(orchestrator.client, data)
    trainer = lightning.Trainer(max_epochs=rounds, accelerator="cpu", callbacks=[ConflictMonitor()], **QUIET)
    trainer.fit(orchestrator, datamodule=data)
    after = probe(orchestrator.client, data)
    print(f"linear probe on 50 labels: {before:.1%} before training, {after:.1%} after {rounds} rounds without labels")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    torch.set_num_threads(1)
    main(parser.parse_args().rounds)
