"""FineTuning: the global model, trained once more by each client; what every personal method must beat."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server
from fl_lightning.engine.module.state import Buffers


class FineTuning(FederatedCallback):
    """Serves each client by the model with which its last local training ended.

    Nothing else changes: with FedAvg this is FedAvg fine-tuned by each client, of one round before.
    """

    stacks = True

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.keep(run, "tuned", run.params)

    @override
    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return self.recall(f"tuned/{client}", params), buffers
