"""FLBench: the data sets that FL-bench has partitioned."""

from typing_extensions import override

from fl_lightning.datamodules.files.npz_clients import Clients, fl_bench_files, read_fl_bench
from fl_lightning.datamodules.sites.client_files import ClientFiles
from fl_lightning.errors import refusal


class FLBench(ClientFiles):
    """The clients of a data set of FL-bench, read from ``data.npy``, ``targets.npy`` and ``partition.pkl``.

    FL-bench keeps femnist, celeba and synthetic in this form. Of other data sets it keeps the partition alone, whose
    indices count torchvision's training examples and then its test examples: save these as the two arrays. The
    partition is a pickle, which is read without running its code, as for :class:`PFLlib`. Its validation examples,
    which FL-bench makes if asked to, are left out. Clients have their numbers as names, with zeros in front.
    Arguments: see :class:`ClientFiles`; ``root`` is the folder of the data set, such as ``data/femnist``.
    """

    @override
    def missing(self) -> str | None:
        return refusal(lambda: fl_bench_files(self.folder))

    @override
    def read(self, train: bool) -> Clients:
        return read_fl_bench(self.folder, train)
