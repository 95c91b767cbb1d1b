"""SignSGD: clients send the signs of their updates."""

from math import ceil

from torch import Tensor
from typing_extensions import override

from fl_lightning import LocalRun
from fl_lightning.callbacks.compression.error_feedback import ErrorFeedback


class SignSGD(ErrorFeedback):
    """Sends the sign of each entry and the mean magnitude, with memory of the rest (Karimireddy et al., 2019).

    Each entry counts as one bit.
    """

    @override
    def compress(self, run: LocalRun, vector: Tensor) -> Tensor:
        run.upload_bytes = ceil(run.num_shared / 8) + vector.element_size()
        return vector.sign() * (vector.abs().sum() / max(run.num_shared, 1))
