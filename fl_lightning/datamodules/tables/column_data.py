"""ColumnData: examples in the columns of Hugging Face data sets, dealt to clients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import TensorDataset
from typing_extensions import override

from fl_lightning.datamodules.base.dealt import mask_of
from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.datamodules.base.settings import Tested, Unpack, check_taken
from fl_lightning.datamodules.base.source import Source, of_examples
from fl_lightning.datamodules.changes.augmentation import Augmentation
from fl_lightning.datamodules.changes.constants import CONSTANTS, check_constants, constants_of, count_values
from fl_lightning.datamodules.changes.inputs import checked_augment, to_inputs
from fl_lightning.datamodules.files.folder import MODES
from fl_lightning.datamodules.images.image_folder import pair_of
from fl_lightning.datamodules.partition import Partition
from fl_lightning.datamodules.tables.columns import ColumnImages, LazyImages, stack_for_training
from fl_lightning.engine.federation.batches import Examples
from fl_lightning.engine.federation.raw import RawInputs
from fl_lightning.errors import check_choice, check_positive
from fl_lightning.later import later


class ColumnData(LabelledData):
    """Examples in the columns of Hugging Face data sets. Subclasses say where the data sets come from.

    Where one column holds images, examples are (image, class): images are decoded once into bytes (C, H, W) in memory,
    turned by their EXIF orientation, scaled until they cover ``image_size`` (bilinear, antialiased), and their middle
    is cut out. Batches ``[images, labels]`` become inputs on the device as those of :class:`ImageData`.

    Args:
        num_clients: N, the number of clients.
        partition: as for :class:`LabelledData`.
        batch_size: number of examples in a batch, for evaluation, too.
        collate_fn: as for :class:`FederatedDataModule`, for evaluation, too.
        channels: 3, where grey images become colour, or 1, where colour images become grey; by default 1 if all
            training images are grey.
        image_size: height and width in pixels, or one number for both; by default the commonest size in the training
            set.
        mean: mean of each channel of inputs in [0, 1]; by default measured, as ``std``, on the examples that train.
        std: standard deviation of each channel, above 0.
        normalize: as for :class:`ImageData`, for images only.
        augment: as for :class:`ImageData`, for images only.
        memory_gib: largest number of GiB that decoded images may take; larger sets are decoded example by example,
            whenever they are used, with the same values.
        dealing: ``participation``, ``seed``, ``held_out``, ``proxy_per_class`` and the other arguments of
            :class:`LabelledData`.

    Attributes:
        images: the images of all splits; None for other data.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, an image cannot be decoded.
    """

    by_example = True
    images: ColumnImages | None = None

    @later(channels=None, image_size=None, mean=None, std=None, normalize=True, augment=None, memory_gib=4.0)
    @later(corruption=None, long_tail=1.0, proxy_per_class=0, proxy_source="test", proxy_long_tail=1.0)
    @later(proxy_balanced=False, proxy_batch_size=128, train_examples=None, test_examples=None)
    @later(validation_examples=None, held_out=0.0)
    def __init__(
        self,
        num_clients: int = 1,
        partition: Partition | None = None,
        batch_size: int = 32,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        channels: Literal[1, 3] | None = None,
        image_size: int | tuple[int, int] | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        normalize: bool | tuple[float, float] = True,
        augment: Sequence[Augmentation] | Augmentation | None = None,
        memory_gib: float = 4.0,
        **dealing: Unpack[Tested],
    ) -> None:
        check_taken(type(self), dealing, "eval_batch_size")
        super().__init__(
            num_clients=num_clients,
            partition=partition,
            batch_size=batch_size,
            eval_batch_size=batch_size,
            collate_fn=collate_fn,
            **dealing,
        )
        check_choice("channels", channels, None, *MODES)
        check_positive(memory_gib=memory_gib)
        if mean is not None or std is not None:
            check_constants(mean, std, channels or len(mean or std or ()))
        self.eval_collate = collate_fn
        self.channels, self.memory_gib = channels, memory_gib
        self.image_size = None if image_size is None else pair_of(image_size)
        self.normalize, self.augment = normalize, checked_augment(augment, normalize, collate_fn)
        self._given = (mean, std)

    def decoded(self, splits: Mapping[str, Any], columns: tuple[str, str]) -> ColumnImages:
        """Return the images of data sets, given the columns of the image and the class; see :class:`ColumnImages`."""
        return ColumnImages(splits, columns, self.channels, self.image_size, self.memory_gib)

    def source_of(self, examples: Examples, classes: Tensor | None, label: str | int | None, train: bool) -> Source:
        """Return the training or the test set as a source; see :func:`of_examples`."""
        if train and self.collate_fn is None and isinstance(examples, LazyImages):
            self.collate_fn = stack_for_training
        return of_examples(examples, classes, label)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Turn images into inputs as :meth:`ImageData.on_after_batch_transfer` does; return other batches unchanged."""
        return batch if self.images is None else to_inputs(batch, self)

    @property
    def mean(self) -> tuple[float, ...] | None:
        """The mean of each channel of images in [0, 1], given or measured on what trains; None for other data."""
        return None if self.images is None else self._constants[0]

    @property
    def std(self) -> tuple[float, ...] | None:
        """The standard deviation of each channel, as :attr:`mean`."""
        return None if self.images is None else self._constants[1]

    @property
    def measured(self) -> Mapping[str, str]:  # type: ignore[override]  # known on loading only
        """Mean and standard deviation, where images are normalised by those of the training set."""
        is_measured = self.images is not None and self._given[0] is None and self.normalize is True
        return {CONSTANTS: "set mean and std"} if is_measured else {}

    @cached_property
    def _constants(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        assert self.images is not None
        train: Any = self.images.split("train")
        mean, std = self._given
        if mean is not None:
            return check_constants(mean, std, len(train[0][0]))
        rows = mask_of(len(train), self._dealt.trained.rows).nonzero().flatten()
        chunks: Iterable[Tensor] = (train[row][0][None] for row in rows.tolist())
        if isinstance(train, TensorDataset):
            chunks = (train.tensors[0][part] for part in torch.split(rows, 1000))
        return constants_of(sum(map(count_values, chunks), torch.tensor(0)))

    @override
    def raw_inputs(self, client: int) -> RawInputs | None:
        """Return the bytes of the images on which a client trains; None for other data."""
        if self.images is None:
            return None
        examples: Any = self.client_dataset(client)
        return RawInputs((), (examples[row][0][None] for row in range(len(examples))))
