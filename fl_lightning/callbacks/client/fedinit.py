"""FedInit: clients that start beyond the global model, away from where they last ended."""

from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_not_negative


class FedInit(FederatedCallback):
    """Starts each client beyond the global model, on the side away from its own last model (Sun et al., 2023, FedInit).

    Client k starts at w + β (w - w_k), where w_k (P,) is the model at the end of its last participation; in the first
    one at w, where the released code takes the initial model for w_k. The server averages the clients' models, as in
    the paper, so that updates are counted from w, and so are proximal terms of other rules. The released code counts
    both from the client's start: with all clients in each round and uniform weights, the average is the same.

    Args:
        beta: β >= 0, the share of w - w_k; 0 is FedAvg. The released code has 0.1.

    Raises:
        ConfigurationError: ``beta`` is negative.
    """

    stacks = True

    def __init__(self, beta: float = 0.1) -> None:
        check_not_negative(beta=beta)
        self.beta = beta

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        last = self.recall(f"model/{run.client}", run.anchor)
        run.params.add_(run.anchor - last, alpha=self.beta)

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.keep(run, "model", run.params)
