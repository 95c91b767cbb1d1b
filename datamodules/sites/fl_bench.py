"""FLBench: the data sets that FL-bench has partitioned."""

from functools import cached_property

import torch
from typing_extensions import override

from fl_lightning.datamodules.files.npz_clients import Clients, deal_fl_bench, fl_bench_files, read_fl_bench
from fl_lightning.datamodules.images.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST, VisionData
from fl_lightning.datamodules.sites.client_files import ClientFiles
from fl_lightning.errors import refusal


class FLBench(ClientFiles):
    """The clients of a data set of FL-bench, read from its examples and ``partition.pkl``.

    FL-bench keeps the examples of femnist, celeba and synthetic in ``data.npy`` and ``targets.npy``. Those of mnist,
    fmnist, cifar10 and cifar100 are read from torchvision's files, which FL-bench downloads into the same folder. Of
    any other data set FL-bench keeps the partition alone: save the inputs and targets as the two arrays, in the order
    that FL-bench's data set has. The arrays take precedence. The partition is a pickle, which is read without running
    its code, as for :class:`PFLlib`. Its validation examples, which FL-bench makes if asked to, are left out. Clients
    have their numbers as names, with zeros in front. Arguments: see :class:`ClientFiles`; ``root`` is the folder of the
    data set, such as ``data/mnist``.
    """

    @override
    def missing(self) -> str | None:
        if self._downloaded is not None:
            return self._downloaded.missing()
        return refusal(lambda: fl_bench_files(self.folder))

    @override
    def read(self, train: bool) -> Clients:
        if self._downloaded is None:
            return read_fl_bench(self.folder, train)
        sets = [self._downloaded.load(True), self._downloaded.load(False)]  # the partition counts them in this order
        images = torch.cat([inputs for inputs, _ in sets])
        labels = torch.cat([targets for _, targets in sets])
        return deal_fl_bench(self.folder / "partition.pkl", images.numpy(), labels.numpy(), train)

    @cached_property
    def _downloaded(self) -> VisionData | None:
        """Torchvision's data set in the folder; None if there is none, if there are arrays, or no partition."""
        if (self.folder / "data.npy").is_file() or not (self.folder / "partition.pkl").is_file():
            return None
        for source in (MNIST, FashionMNIST, CIFAR10, CIFAR100):
            data: VisionData = source(str(self.folder), download=False, cache=None)
            if data.own_folder().is_dir():
                return data
        return None
