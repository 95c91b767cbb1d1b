"""OwnModel: base of the rules that keep a whole model of each client's own."""

from abc import ABC, abstractmethod

from torch import Tensor
from typing_extensions import override

from fl_lightning import Buffers, FederatedCallback, LocalRun, Server


class OwnModel(FederatedCallback, ABC):
    """Base of such rules: serves each client by the model that it keeps, with the global model's buffers."""

    @abstractmethod
    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        """Keep the client's own model: ``self.keep(run, "own", params)``, with (P,) parameters."""

    @override
    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return self.recall(f"own/{client}", params), buffers
