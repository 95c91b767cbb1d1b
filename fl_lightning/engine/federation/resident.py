"""ResidentData: datasets in memory, copied to the device once, where the clients' batches are then gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.engine.federation.batches import TrainingBatch, take

LIMIT = 1 << 30  # bytes for copies on devices whose free memory is unknown


class ResidentData:
    """Keeps copies of datasets on a device, as long as they fit into a quarter of the device memory that was free.

    A copy is made anew for a dataset whose tensors have changed.

    Args:
        device: the device, not a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._left = torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else LIMIT
        # By the memory of the original's tensors: the original, and its copy.
        self._copies: dict[Any, tuple[TensorDataset, TensorDataset]] = {}

    def place(self, dataset: TensorDataset, rows: Sequence[Tensor]) -> tuple[TensorDataset, list[Tensor]] | None:
        """Return a dataset's copy on the device, and the row numbers of some batches there.

        Args:
            dataset: the dataset.
            rows: (B,) the row numbers of each batch.

        Returns:
            The copy and the row numbers; None if there is no room, or if a row number does not count from the top.
        """
        whole = torch.cat(list(rows))
        low, high = torch.aminmax(whole)
        if low < 0 or high >= len(dataset) or (copy := self._copy(dataset)) is None:
            return None
        return copy, list(torch.split(whole.to(self._device), [len(each) for each in rows]))

    def batches(self, dataset: TensorDataset, rows: Sequence[Tensor]) -> list[TrainingBatch] | None:
        """Gather batches on the device, one after another from one copy; None as for :meth:`place`."""
        if (placed := self.place(dataset, rows)) is None:
            return None
        order, sizes = torch.cat(placed[1]), [len(each) for each in rows]
        parts = (torch.split(take(tensor, order), sizes) for tensor in placed[0].tensors)
        return list(map(TrainingBatch, zip(*parts, strict=True)))

    def _copy(self, dataset: TensorDataset) -> TensorDataset | None:
        key = tuple((t.data_ptr(), t.shape, t.stride(), t.dtype, t._version) for t in dataset.tensors)
        if key not in self._copies:
            size = sum(tensor.nbytes for tensor in dataset.tensors)
            if size > self._left:
                return None
            self._left -= size
            copy = TensorDataset(*(tensor.to(self._device) for tensor in dataset.tensors))
            self._copies[key] = dataset, copy
        return self._copies[key][1]
