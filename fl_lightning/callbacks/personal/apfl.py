"""APFL: on each client a mixture of a model of its own and the global one."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import Buffers, FederatedCallback, LocalRun, Server, check_within


class APFL(FederatedCallback):
    """Serves each client by a mixture of the global model and one of its own, trained to fit (Deng et al., 2020).

    The mixture is α v_k + (1 - α) w. v_k takes as many local steps as the client's model w_k, against the gradient α
    ∇f_k(α v + (1 - α) w_k), at the end w_k of the client's training; in the paper w_k moves meanwhile. Models are
    mixed, as in the paper; FedTorch, which its authors wrote, mixes their outputs. α is fixed; the paper may also learn
    it. The global model w is that of the other rules alone. Weight decay acts on the mixture. Clients train one by one,
    and twice.

    Args:
        alpha: α in (0, 1], share of the client's own model.

    Raises:
        ConfigurationError: ``alpha`` is out of range.
    """

    def __init__(self, alpha: float = 0.5) -> None:
        check_within("(0, 1]", alpha=alpha)
        self.alpha = alpha

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        # A step of v by -η α g moves the mixture by -η α² g: the mixture itself is trained.
        rest = (1 - self.alpha) * run.params
        start = self.alpha * self.recall(f"v/{run.client}", run.anchor) + rest

        def shorten(again: LocalRun) -> None:
            again.grads.mul_(self.alpha**2)

        self.keep(run, "v", (orchestrator.train_again(run, start, shorten) - rest) / self.alpha)

    @override
    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return self.alpha * self.recall(f"v/{client}", params) + (1 - self.alpha) * params, buffers
