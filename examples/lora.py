"""LoRA: eight clients fine-tune a frozen vision transformer, and only small adapters travel (Hu et al., 2022).

    python examples/lora.py
    python examples/lora.py --rounds 20
    python examples/lora.py --freeze_a       # FFA-LoRA (Sun et al., 2024)

Shows a backbone that the server has trained with the plain Trainer, `init_from`, which takes it over (the head, of
another size, starts anew), adapters by peft in `configure_model`, frozen weights that neither travel nor enter a
checkpoint (`strict_loading = False`), a stop and a resume, which layers' adapters conflict, and `fl_lightning.export`
of the whole network. The backbone knows the digits 0 to 4; the clients have all ten. A network of timm with
`pretrained=True` takes the same way: `init_from="timm:vit_tiny_patch16_224"`.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from peft import LoraConfig, inject_adapter_in_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FederatedOrchestrator, export
from fl_lightning.callbacks import ConflictMonitor, GradientHarmonization
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


class AdaptedClassifier(Classifier):
    """The classifier with adapters of rank 4 in its attention: all but the adapters and the head is frozen.

    Args:
        num_classes: number of outputs.
        freeze_a: whether the first matrix of each adapter stays as it was drawn (FFA-LoRA).
    """

    strict_loading = False  # a checkpoint lacks the backbone, and the source of the backbone lacks the adapters

    def __init__(self, num_classes: int = 10, freeze_a: bool = False) -> None:
        super().__init__(num_classes)
        self.freeze_a = freeze_a

    def configure_model(self) -> None:
        if hasattr(self.network, "peft_config"):
            return  # the Trainer calls this before each of its methods
        config = LoraConfig(r=4, lora_alpha=16, target_modules=["qkv", "proj"], exclude_modules=["patch_embed.proj"])
        inject_adapter_in_model(config, self.network)  # freezes all but the adapters
        for name, parameter in self.named_parameters():
            adapts = "lora_B" in name or ("lora_A" in name and not self.freeze_a)
            parameter.requires_grad = adapts or ".head." in name

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad and "lora_" not in name:
                del checkpoint["state_dict"][name]


def pretrain(path: Path) -> None:
    """Train a classifier of the digits 0 to 4 on the server, with the plain Trainer."""
    data = Digits()
    images, labels = data.load(train=True)
    known = TensorDataset((images[labels < 5] / 255 - data.mean[0]) / data.std[0], labels[labels < 5])
    trainer = lightning.Trainer(max_epochs=5, enable_checkpointing=False, **QUIET)
    trainer.fit(Classifier(5), DataLoader(known, batch_size=32, shuffle=True))
    trainer.save_checkpoint(path)


def fine_tune(
    rounds: int, folder: Path, freeze_a: bool, resume: str | None = None
) -> tuple[FederatedOrchestrator, float, dict[str, float]]:
    """Fine-tune to the given number of rounds; return the orchestrator, the accuracy before, and the last metrics."""
    data = Digits(num_clients=8, partition=Dirichlet(1.0), batch_size=32, seed=1)
    module, backbone = AdaptedClassifier(freeze_a=freeze_a), str(folder / "backbone.ckpt")
    orchestrator = FederatedOrchestrator(module, local_epochs=2, init_from=backbone)
    callbacks = [ConflictMonitor(layers=True), GradientHarmonization(), ModelCheckpoint(folder, save_last=True)]
    trainer = lightning.Trainer(max_epochs=rounds, callbacks=callbacks, default_root_dir=folder, **QUIET)
    before = trainer.validate(orchestrator, datamodule=data, verbose=False)[0]["val/accuracy"]
    trainer.fit(orchestrator, datamodule=data, ckpt_path=resume)
    return orchestrator, before, {name: float(value) for name, value in trainer.callback_metrics.items()}


def main(rounds: int, folder: Path, freeze_a: bool = False) -> FederatedOrchestrator:
    """Pretrain, fine-tune for half of the rounds, resume for the rest, and export; print what each step gives."""
    lightning.seed_everything(1, verbose=False)
    pretrain(folder / "backbone.ckpt")
    _, before, halfway = fine_tune(rounds // 2, folder, freeze_a)
    orchestrator, _, last = fine_tune(rounds, folder, freeze_a, resume=str(folder / "last.ckpt"))
    accuracies = f"{before:.1%} before, {halfway['val/accuracy']:.1%} after {rounds // 2} rounds"
    print(f"accuracy: {accuracies}, {last['val/accuracy']:.1%} after {rounds}")
    whole = sum(parameter.numel() for parameter in orchestrator.client.parameters())
    print(f"numbers that travel: {len(orchestrator.params):,} of {whole:,}")
    example = torch.zeros(2, 1, 8, 8)
    export(folder / "last.ckpt", folder / "whole.pt2", module=orchestrator.client, example=example, overwrite=True)
    sizes = [f"{name} {(folder / name).stat().st_size // 1024} KiB" for name in ("last.ckpt", "whole.pt2")]
    print(f"files: {', '.join(sizes)}")
    for name, ratio in last.items():
        if name.startswith("conflict/layer/"):
            print(f"{ratio:.0%} of the pairs of clients conflict in {name.removeprefix('conflict/layer/network.')}")
    return orchestrator


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--freeze_a", action="store_true")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        options = parser.parse_args()
        main(options.rounds, Path(folder), options.freeze_a)
