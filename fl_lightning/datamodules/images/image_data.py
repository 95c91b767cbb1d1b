"""ImageData: labelled images in memory as bytes, augmented and scaled on the device."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2  # type: ignore[import-untyped]  # torchvision ships no types
from typing_extensions import override

from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.datamodules.base.settings import Labelled, Unpack
from fl_lightning.datamodules.changes.augmentation import Augmentation
from fl_lightning.datamodules.changes.domain_shift import DomainShift
from fl_lightning.datamodules.changes.inputs import checked_augment, to_inputs
from fl_lightning.datamodules.partition.steps.parts import Parts
from fl_lightning.engine.federation.batches import in_memory, take
from fl_lightning.engine.federation.raw import RawInputs
from fl_lightning.errors import ConfigurationError, check_at_least
from fl_lightning.later import later


class ImageData(LabelledData):
    """Labelled images, kept in memory as bytes. A subclass defines ``num_classes``, ``mean``, ``std`` and ``load``.

    Batches are ``[images, labels]``: uint8 images (B, C, H, W), which :meth:`on_after_batch_transfer` turns into inputs
    on the device, and int64 labels (B,).

    Args:
        normalize: True to subtract each channel's ``mean`` and divide by its ``std``, False to leave inputs in [0, 1],
            or a mean and a standard deviation > 0 for all channels: (0.5, 0.5) makes inputs in [-1, 1].
        augment: one or more augmentations of the clients' training batches, applied in order; evaluation and proxy
            batches are never augmented; not together with ``collate_fn``.
        resize: side in pixels, at least 1, of the squares to which all images are resized once, when they are loaded
            (bilinear, antialiased); None leaves images as they are.
        domain_shift: change of the clients' images by their domains, once; none by default.
        labelled: ``num_clients``, ``partition``, ``proxy_per_class`` and the other arguments of :class:`LabelledData`.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, the images have the wrong type or shape.
    """

    mean: tuple[float, ...]  # per channel, of inputs in [0, 1]
    std: tuple[float, ...]
    by_example = True

    @later(domain_shift=None)
    def __init__(
        self,
        normalize: bool | tuple[float, float] = True,
        augment: Sequence[Augmentation] | Augmentation | None = None,
        resize: int | None = None,
        domain_shift: DomainShift | None = None,
        **labelled: Unpack[Labelled],
    ) -> None:
        super().__init__(**labelled)
        if resize is not None:
            check_at_least(1, resize=resize)
        self.normalize = normalize
        self.augment = checked_augment(augment, normalize, self.collate_fn)
        self.resize = resize
        self.domain_shift = domain_shift

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Load the training or the test set: uint8 images (n, C, H, W) and int64 labels (n,) below ``num_classes``."""
        return super().load(train)

    @override
    def raw_inputs(self, client: int) -> RawInputs | None:
        found = in_memory(self.client_dataset(client), torch.arange(self.client_num_samples(client)))
        if found is None or found[0].tensors[0].dtype != torch.uint8:
            return None
        dataset, rows = found
        return RawInputs((), (take(dataset.tensors[0], part) for part in torch.split(rows, 1000)))

    @override
    def shifted(self, inputs: Tensor, *parts: Parts) -> Tensor:
        return inputs if self.domain_shift is None else self.domain_shift.of_clients(inputs, *parts)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Turn the images of a batch ``[images (B, C, H, W), ...]`` into inputs if the images are uint8.

        The images of a training batch are augmented first. Then all images become floats in [0, 1], of the type in
        which the run computes. Unless ``normalize`` is False, each channel x then becomes (x - mean) / std. Any other
        batch is returned unchanged: batches of floats, and the client ids that the Trainer takes for training batches.
        """
        return to_inputs(batch, self)

    def _checked(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        channels = len(self.mean)
        if inputs.dtype != torch.uint8 or inputs.ndim != 4 or inputs.shape[1] != channels or not len(inputs):
            raise ConfigurationError(
                f"expected {type(self).__name__}.load to give uint8 images (n, {channels}, H, W), n > 0, got "
                f"{inputs.dtype} {tuple(inputs.shape)}: convert the images"
            )
        if self.resize is not None:
            inputs = v2.functional.resize(inputs, [self.resize, self.resize])
        return super()._checked(inputs, targets)
