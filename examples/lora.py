"""LoRA: eight clients fine-tune a frozen vision transformer, and only small adapters travel (Hu et al., 2022).

    python examples/lora.py
    python examples/lora.py --rounds 20

Shows a backbone that the server has trained with the plain Trainer, `init_from`, which takes it over (the head, of
another size, starts anew), frozen weights that neither travel nor enter a checkpoint (`strict_loading = False`), a
stop and a resume, and `fl_lightning.export` of the whole network. The backbone knows the digits 0 to 4; the clients
have all ten. A network of timm with `pretrained=True` takes the same way: `init_from="timm:vit_tiny_patch16_224"`.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FederatedOrchestrator, export
from fl_lightning.callbacks import GradientHarmonization
from fl_lightning.datamodules import Digits, Dirichlet

QUIET = {"logger": False, "enable_model_summary": False, "enable_progress_bar": False, "accelerator": "cpu"}


class Classifier(lightning.LightningModule):
    """A small vision transformer for images of 8×8 pixels."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.network = VisionTransformer(
            img_size=8, patch_size=4, in_chans=1, num_classes=num_classes, embed_dim=64, depth=2, num_heads=4
        )
        self.accuracy = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.accuracy(self(batch[0]), batch[1])
        self.log("val/accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=3e-3)


class LoRALinear(nn.Linear):
    """A linear layer plus a product of two thin matrices, which is zero at first."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__(inputs, outputs)
        self.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.T @ self.up.T


class AdaptedClassifier(Classifier):
    """The classifier with adapters in its attention: all but the adapters and the head is frozen."""

    strict_loading = False  # a checkpoint lacks the backbone, and the source of the backbone lacks the adapters

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(num_classes)
        for block in self.network.blocks:
            block.attn.qkv = LoRALinear(64, 3 * 64)
            block.attn.proj = LoRALinear(64, 64)
        for name, parameter in self.named_parameters():
            parameter.requires_grad = name.endswith((".down", ".up")) or ".head." in name

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad:
                del checkpoint["state_dict"][name]


def pretrain(path: Path) -> None:
    """Train a classifier of the digits 0 to 4 on the server, with the plain Trainer."""
    data = Digits()
    images, labels = data.load(train=True)
    known = TensorDataset((images[labels < 5] / 255 - data.mean[0]) / data.std[0], labels[labels < 5])
    trainer = lightning.Trainer(max_epochs=5, enable_checkpointing=False, **QUIET)
    trainer.fit(Classifier(5), DataLoader(known, batch_size=32, shuffle=True))
    trainer.save_checkpoint(path)


def fine_tune(rounds: int, folder: Path, resume: str | None = None) -> tuple[FederatedOrchestrator, float, float]:
    """Fine-tune to the given number of rounds; return the orchestrator and the accuracy before and after."""
    data = Digits(num_clients=8, partition=Dirichlet(1.0), batch_size=32, seed=1)
    orchestrator = FederatedOrchestrator(AdaptedClassifier(), local_epochs=2, init_from=str(folder / "backbone.ckpt"))
    callbacks = [GradientHarmonization(), ModelCheckpoint(folder, save_last=True)]
    trainer = lightning.Trainer(max_epochs=rounds, callbacks=callbacks, **QUIET)
    before = trainer.validate(orchestrator, datamodule=data, verbose=False)[0]["val/accuracy"]
    trainer.fit(orchestrator, datamodule=data, ckpt_path=resume)
    return orchestrator, before, float(trainer.callback_metrics["val/accuracy"])


def main(rounds: int, folder: Path) -> FederatedOrchestrator:
    """Pretrain, fine-tune for half of the rounds, resume for the rest, and export; print what each step gives."""
    lightning.seed_everything(1, verbose=False)
    pretrain(folder / "backbone.ckpt")
    _, before, halfway = fine_tune(rounds // 2, folder)
    orchestrator, _, after = fine_tune(rounds, folder, resume=str(folder / "last.ckpt"))
    print(f"accuracy: {before:.1%} before, {halfway:.1%} after {rounds // 2} rounds, {after:.1%} after {rounds}")
    whole = sum(parameter.numel() for parameter in orchestrator.client.parameters())
    print(f"numbers that travel: {len(orchestrator.params):,} of {whole:,}")
    example = torch.zeros(2, 1, 8, 8)
    export(folder / "last.ckpt", folder / "whole.pt2", module=orchestrator.client, example=example, overwrite=True)
    sizes = [f"{name} {(folder / name).stat().st_size // 1024} KiB" for name in ("last.ckpt", "whole.pt2")]
    print(f"files: {', '.join(sizes)}")
    return orchestrator


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args().rounds, Path(folder))
