"""pFedMe: personal models that the Moreau envelope of each client's loss defines."""

from collections.abc import Callable

from torch import Tensor
from typing_extensions import override

from fl_lightning import LocalRun, Server, check_at_least, check_positive
from fl_lightning.callbacks.client.fedsam import following
from fl_lightning.callbacks.personal.own_model import OwnModel


class PFedMe(OwnModel):
    """Moves each client's model towards its personal model, which fits the batch near it (Dinh et al., 2020).

    At each step θ takes K gradient steps on f_k(θ) + λ/2 ‖θ - w‖² over the step's batch, from θ = w; then the client's
    optimizer steps with the gradient λ (w - θ) of the Moreau envelope (Algorithm 1). The last θ is the client's own
    model. The released code goes on from the last θ, with a weight decay of 0.001. The paper's server step β is
    ``model.server_optimizer``'s learning rate.

    Args:
        lam: λ > 0.
        lr: learning rate of θ's steps.
        steps: K, number of θ's steps.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"local gradient"})

    def __init__(self, lam: float = 15.0, lr: float = 0.01, steps: int = 5) -> None:
        check_positive(lam=lam, lr=lr)
        check_at_least(1, steps=steps)
        self.lam, self.lr, self.steps = lam, lr, steps

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        def envelope() -> Tensor:
            theta = run.params.clone()
            for step in range(self.steps):
                gradient = run.gradient_at(theta.clone(), closure) if step else run.grads
                theta -= self.lr * (gradient + self.lam * (theta - run.params))
            run.kept["theta"] = theta
            return self.lam * (run.params - theta)

        return following(run, closure, envelope)

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.keep(run, "own", run.kept.get("theta", run.params))
