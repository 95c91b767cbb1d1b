"""Ditto: a model of each client's own, near the global one."""

from typing_extensions import override

from fl_lightning import LocalRun, Server, check_not_negative
from fl_lightning.callbacks.personal.own_model import OwnModel


class Ditto(OwnModel):
    """Trains a second model on each client, which is pulled towards the global one (Li et al., 2021, Algorithm 1).

    The second model v_k takes as many local steps as the first, with the gradient of f_k(v) + λ/2 ‖v - w‖², where w is
    the global model of the round. v_k starts at the global model of the client's first round; in the released code, at
    the initial one. The global model is that of the other rules alone. Clients train one by one, and twice.

    Args:
        lam: λ >= 0, strength of the pull.

    Raises:
        ConfigurationError: ``lam`` is negative.
    """

    def __init__(self, lam: float = 0.1) -> None:
        check_not_negative(lam=lam)
        self.lam = lam

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        def pull(again: LocalRun) -> None:
            again.grads.add_(again.params - run.anchor, alpha=self.lam)

        self.keep(run, "own", orchestrator.train_again(run, self.recall(f"own/{run.client}", run.anchor), pull))
