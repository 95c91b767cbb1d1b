"""TopK: clients send the largest entries of their updates."""

from math import ceil

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import LocalRun, check_within
from fl_lightning.callbacks.compression.error_feedback import ErrorFeedback

INDEX_BYTES = 4


class TopK(ErrorFeedback):
    """Sends the entries of largest magnitude, with memory of the others (Stich et al., 2018, Mem-SGD).

    Each entry counts as its value and an index of four bytes.

    Args:
        share: share of the shared parameters that is sent, in (0, 1].

    Raises:
        ConfigurationError: ``share`` is out of range.
    """

    def __init__(self, share: float = 0.01) -> None:
        check_within("(0, 1]", share=share)
        self.share = share

    @override
    def compress(self, run: LocalRun, vector: Tensor) -> Tensor:
        chosen = vector.abs().topk(count := ceil(self.share * run.num_shared)).indices
        run.upload_bytes = count * (vector.element_size() + INDEX_BYTES)
        return torch.zeros_like(vector).index_copy_(0, chosen, vector[chosen])
