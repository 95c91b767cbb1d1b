"""FLBench: the data sets that FL-bench has partitioned."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from fl_lightning.datamodules.files.npz_clients import Clients, deal_fl_bench, fl_bench_files, read_fl_bench
from fl_lightning.datamodules.images.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST, VisionData
from fl_lightning.datamodules.sites.arrays import channels_first, flat_images, may_be_channels_last
from fl_lightning.datamodules.sites.client_files import ClientFiles
from fl_lightning.errors import ConfigurationError, refusal


class FLBench(ClientFiles):
    """The clients of a data set of FL-bench, read from its examples and ``partition.pkl``.

    FL-bench keeps the examples of femnist, celeba and synthetic in ``data.npy`` and ``targets.npy``. Those of mnist,
    fmnist, cifar10 and cifar100 are read from torchvision's files, which FL-bench downloads into the same folder. Of
    any other data set FL-bench keeps the partition alone: save the inputs and targets as the two arrays, in the order
    that FL-bench's data set has. The arrays take precedence. Vectors of 784 floats, as of femnist, are images of 28x28;
    bytes (n, H, W, 3), as of celeba, are images whose channels come last. The partition is a pickle, which is read
    without running its code, as for :class:`PFLlib`. Its validation examples, which FL-bench makes if asked to, are
    left out, as a warning says. Clients have their numbers as names, with zeros in front. Arguments: see
    :class:`ClientFiles`; ``root`` is the folder of the data set, such as ``data/mnist``.
    """

    @override
    def missing(self) -> str | None:
        return refusal(self._find)

    @override
    def read(self, train: bool) -> Clients:
        if self._downloaded is None:
            clients = read_fl_bench(self.folder, train)
            if self.inputs is not None:
                return clients
            return {name: (_as_images(inputs), targets) for name, (inputs, targets) in clients.items()}
        sets = [self._downloaded.load(True), self._downloaded.load(False)]  # the partition counts them in this order
        images = torch.cat([inputs for inputs, _ in sets])
        labels = torch.cat([targets for _, targets in sets])
        return deal_fl_bench(self.folder / "partition.pkl", images.numpy(), labels.numpy(), train)

    @cached_property
    def _downloaded(self) -> VisionData | None:
        """Torchvision's data set in the folder; None if there is none, if there are arrays, or no partition."""
        if (self.folder / "data.npy").is_file() or not (self.folder / "partition.pkl").is_file():
            return None
        found: list[VisionData] = []
        for source in (MNIST, FashionMNIST, CIFAR10, CIFAR100):
            data: VisionData = source(str(self.folder), download=False, cache=None)
            if data.own_folder().is_dir():
                found.append(data)
        if len(found) > 1:
            raise ConfigurationError(
                f"expected one data set in {self.folder}, got {' and '.join(data.name for data in found)}: keep the "
                "one that partition.pkl divides"
            )
        return found[0] if found else None

    def _find(self) -> None:
        """Refuse a folder that lacks files."""
        if self._downloaded is None:
            fl_bench_files(self.folder)
        elif lacking := self._downloaded.missing():
            raise ConfigurationError(lacking)


def _as_images(inputs: NDArray[Any]) -> NDArray[Any]:
    """Return femnist's vectors and celeba's bytes (n, H, W, 3) as images (n, C, H, W); other arrays as they are."""
    if inputs.dtype.kind == "f":
        return flat_images(inputs)
    if inputs.dtype == np.uint8 and may_be_channels_last(inputs) and inputs.shape[3] == 3:
        return channels_first(inputs)
    return inputs
