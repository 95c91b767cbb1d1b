"""Kept: the tensors that stay at a site, in files; the server knows the round of each, and no value."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fl_lightning.errors import ConfigurationError, system_error
from fl_lightning.files import whole

VALUE = "value"


class KeepingError(OSError):
    """A site could not write what it keeps."""


class Kept:
    """Holds what :meth:`FederatedCallback.keep` keeps for the clients of a site, one file for a value and round.

    A value counts once the server has taken in the client's update of that round, which the mark that comes with the
    client's next message tells. Values older than that mark are deleted.

    Args:
        folder: the folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, rule: str, name: str, round: int, value: Tensor) -> Tensor:
        """Write the value of a round; returns the mark, of int64, which the server gets in its place.

        Raises:
            KeepingError: the disk is full, or does not take the file for another reason.
        """
        try:
            with whole(self._path(rule, name, round)) as path:
                save_file({VALUE: value.to("cpu", copy=True).contiguous()}, path)
        except (OSError, SafetensorError) as error:
            number = system_error(error)
            if number is None:
                raise
            raise KeepingError(number, os.strerror(number), str(self._folder)) from None
        return torch.tensor(round)

    def take(self, rule: str, name: str, mark: Tensor) -> Tensor:
        """Read the value that a mark names.

        Raises:
            ConfigurationError: the site has lost the value.
        """
        if mark.numel() != 1:
            raise ConfigurationError(f"expected the round of {name} of {rule}, got {mark.numel()} numbers")
        round = int(mark)
        path = self._path(rule, name, round)
        if not path.is_file():
            raise ConfigurationError(
                f"expected {name} of {rule} of round {round} in {self._folder}, which stays at this site, got no such "
                "file: bring back the folder, or begin the run anew"
            )
        for other in path.parent.iterdir():
            if other.stem.isdigit() and int(other.stem) < round:
                other.unlink()
        return load_file(path)[VALUE]

    def _path(self, rule: str, name: str, round: int) -> Path:
        parts = [quote(part, safe="").replace(".", "%2E") for part in (rule, name)]  # no name leads elsewhere
        return self._folder.joinpath(*parts, f"{round}.safetensors")
