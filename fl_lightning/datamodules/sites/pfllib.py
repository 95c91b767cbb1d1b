"""PFLlib: the data sets that PFLlib has generated."""

from functools import partial
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from fl_lightning.datamodules.files.npz_clients import Clients, pfllib_files, read_pfllib
from fl_lightning.datamodules.sites.arrays import Tokens, array_of
from fl_lightning.datamodules.sites.client_files import ClientFiles
from fl_lightning.datamodules.sites.texts import ALPHABET
from fl_lightning.errors import ConfigurationError, refusal

LINE = 80  # characters of Shakespeare before the one to predict


class PFLlib(ClientFiles):
    """The clients of a data set of PFLlib (Zhang et al., 2025), read from ``train/0.npz``, ``test/0.npz``, ….

    PFLlib keeps each client's arrays in a pickle. Here it is read without running its code: a file that asks for
    anything but arrays, lists and dicts is refused. Of texts (AG News and the like), which PFLlib stores with their
    lengths, the words' numbers (n, T) int64 are taken; 0 comes after the last word. Whole numbers (n, 80) below 80 are
    the characters of its Shakespeare, as a warning says. Channels of images come first. Clients have the numbers of
    the files as names, with zeros in front. Arguments: see :class:`ClientFiles`; ``root`` is the folder of the data
    set, such as ``dataset/MNIST``.
    """

    @override
    def missing(self) -> str | None:
        found = [refusal(partial(pfllib_files, self.folder, train)) for train in (True, False)]
        return found[0] or found[1]

    @override
    def read(self, train: bool) -> Clients:
        clients: Clients = {}
        for name, (inputs, targets) in read_pfllib(self.folder, train).items():
            array = array_of(inputs, name)
            if array.dtype == object and array.ndim == 2 and array.shape[1] == 2:  # texts and their lengths
                texts = array_of(array[:, 0].tolist(), name)
                if texts.dtype.kind not in "iu" or texts.ndim != 2:
                    raise ConfigurationError(
                        f"expected texts as whole numbers for client {name!r} of {self.folder}, got {texts.dtype} "
                        f"{texts.shape}: generate the data again"
                    )
                clients[name] = (Tokens(texts.astype(np.int64)), targets)
            else:
                clients[name] = (array, targets)
        filled = {name: inputs for name, (inputs, targets) in clients.items() if array_of(targets, name).size}
        if self.inputs is None and filled and all(map(_are_lines, filled.values())):
            if train:
                rank_zero_warn(
                    f"whole numbers (n, {LINE}) from 0 to {len(ALPHABET) - 1} in {self.folder} are taken as the "
                    "characters of Shakespeare: inputs: tokens says so, inputs: numbers makes floats of them"
                )
            for name, inputs in filled.items():
                clients[name] = (Tokens(inputs.astype(np.int64)), clients[name][1])
        return clients


def _are_lines(inputs: Any) -> bool:
    """Tell whether inputs have the form of PFLlib's Shakespeare: places of 80 characters in the alphabet."""
    if isinstance(inputs, Tokens) or inputs.dtype.kind not in "iu" or inputs.shape[1:] != (LINE,):
        return False
    return bool(inputs.min() >= 0 and inputs.max() < len(ALPHABET))
