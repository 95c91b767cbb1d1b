"""FineTuning: the global model, trained once more by each client; what every personal method must beat."""

from typing_extensions import override

from fl_lightning import LocalRun, Server
from fl_lightning.callbacks.personal.own_model import OwnModel


class FineTuning(OwnModel):
    """Serves each client by the model with which its last local training ended.

    Nothing else changes: with FedAvg this is FedAvg fine-tuned by each client, of one round before.
    """

    stacks = True

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.keep(run, "own", run.params)
