"""ErrorFeedback: base of the compressors that remember what they have left out."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server


class ErrorFeedback(FederatedCallback, ABC):
    """Base of compressors with memory (Seide et al., 2014; Karimireddy et al., 2019). A subclass defines `compress`.

    A client sends the compression of its update and of what its earlier compressions have left out, and keeps the rest.
    """

    post_processes = True

    @abstractmethod
    def compress(self, run: LocalRun, vector: Tensor) -> Tensor:
        """Return the (P,) vector that the server gets for a vector (P,), and set ``run.upload_bytes``."""

    @override
    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        whole = update + self.recall(f"memory/{run.client}", torch.zeros_like(update))
        sent = self.compress(run, whole)
        self.keep(run, "memory", whole - sent)
        return sent
