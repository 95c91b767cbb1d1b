"""Functions that turn batches of images, kept as bytes, into a network's inputs on the device."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.datamodules.changes.augmentation import Augmentation
from fl_lightning.engine.federation.batches import TrainingBatch
from fl_lightning.errors import ConfigurationError


def checked_augment(
    augment: Sequence[Augmentation] | Augmentation | None,
    normalize: bool | tuple[float, float],
    collate_fn: Callable[[list[Any]], Any] | None,
) -> list[Augmentation]:
    """Refuse settings of images that do not go together; return the augmentations as a list."""
    if not isinstance(normalize, bool) and not normalize[1] > 0:
        raise ConfigurationError(f"normalize must be true, false or (mean, std) with std > 0, got {normalize}")
    if augment and collate_fn is not None:
        raise ConfigurationError(
            "expected augment or collate_fn, got both: augment changes batches that are stacked in memory; let "
            "collate_fn augment"
        )
    return [augment] if isinstance(augment, Augmentation) else list(augment or ())


def to_inputs(batch: Any, data: Any) -> Any:
    """Turn the images of a batch ``[images (B, C, H, W), ...]`` into inputs if the images are uint8.

    What becomes of them is written in :meth:`ImageData.on_after_batch_transfer`; ``data`` is a data module with the
    settings ``normalize``, ``augment``, ``mean`` and ``std``.
    """
    if not isinstance(batch, list | tuple) or not isinstance(batch[0], Tensor) or batch[0].dtype != torch.uint8:
        return batch
    images = batch[0]
    for augmentation in data.augment if isinstance(batch, TrainingBatch) else ():
        images = augmentation(images)
    inputs = images.to(_dtype(data.trainer)).div_(255)
    if data.normalize:
        constants = (data.mean, data.std)
        if not isinstance(data.normalize, bool):
            constants = ((data.normalize[0],), (data.normalize[1],))
        mean, std = (_per_channel(values, inputs.dtype, inputs.device) for values in constants)
        inputs.sub_(mean).div_(std)
    return [inputs, *batch[1:]]


def _dtype(trainer: Trainer | None) -> torch.dtype:
    """Return the type in which the run computes: the default type, or float64 under ``precision: 64-true``."""
    if trainer is None:
        return torch.get_default_dtype()
    with trainer.precision_plugin.tensor_init_context():  # the Trainer converts inputs only before this hook
        return torch.get_default_dtype()


@lru_cache(maxsize=32)  # kept on the device: a copy to a GPU would make every batch wait
def _per_channel(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return constants (C, 1, 1) that broadcast over (B, C, H, W)."""
    with torch.inference_mode(False):  # validation runs in inference mode, training reuses the tensor
        return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)


def for_evaluation(batch: Any) -> Any:
    """Return a batch that is not augmented."""
    return list(batch) if isinstance(batch, TrainingBatch) else batch
