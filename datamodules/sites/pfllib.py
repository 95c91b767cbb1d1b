"""PFLlib: the data sets that PFLlib has generated."""

from functools import partial

import numpy as np
from typing_extensions import override

from fl_lightning.datamodules.files.npz_clients import Clients, pfllib_files, read_pfllib
from fl_lightning.datamodules.sites.client_files import ClientFiles
from fl_lightning.errors import ConfigurationError, refusal


class PFLlib(ClientFiles):
    """The clients of a data set of PFLlib (Zhang et al., 2025), read from ``train/0.npz``, ``test/0.npz``, ….

    PFLlib keeps each client's arrays in a pickle. Here it is read without running its code: a file that asks for
    anything but arrays, lists and dicts is refused. Of texts (AG News and the like), which PFLlib stores with their
    lengths, the words' numbers (n, T) int64 are taken; 0 comes after the last word. Clients have the numbers of the
    files as names, with zeros in front. Arguments: see :class:`ClientFiles`; ``root`` is the folder of the data set,
    such as ``dataset/MNIST``.
    """

    @override
    def missing(self) -> str | None:
        found = [refusal(partial(pfllib_files, self.folder, train)) for train in (True, False)]
        return found[0] or found[1]

    @override
    def read(self, train: bool) -> Clients:
        clients: Clients = {}
        for name, (inputs, targets) in read_pfllib(self.folder, train).items():
            array = np.asarray(inputs)
            if array.dtype == object and array.ndim == 2 and array.shape[1] == 2:  # texts and their lengths
                try:
                    array = np.array(array[:, 0].tolist(), dtype=np.int64)
                except (ValueError, TypeError):
                    raise ConfigurationError(
                        f"expected texts of one length, as numbers, for client {name!r} of {self.folder}, got others: "
                        "generate the data again"
                    ) from None
            clients[name] = (array, targets)
        return clients
