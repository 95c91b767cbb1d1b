"""FedAWA: aggregation weights that favour updates near the round's common direction."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_at_least, check_positive
from fl_lightning.engine.updates.gram import EPSILON

BETAS = (0.5, 0.999)  # of Adam, as in the released code


def misalignment(gram: Tensor, turned: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Σ_k λ_k (‖Δ_k - Σ_j λ_j Δ_j‖ + r_k) and its gradient with respect to the weights λ.

    Updates (1, 0) and (-1, 0) of the weights ½ lie both 1 away from their sum, zero. More weight on the first moves the
    sum towards the first, which gains as much as the second loses:

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedawa import misalignment
    >>> gram = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    >>> misalignment(gram, turned=torch.tensor([0.0, 0.25]), weights=torch.tensor([0.5, 0.5]))
    (tensor(1.1250), tensor([1.0000, 1.2500]))

    Args:
        gram: (K, K) inner products of the updates Δ.
        turned: (K,) r, one minus the cosine of the angle between the global model and each client's model.
        weights: (K,) λ.

    Returns:
        The value, a scalar, and its gradient (K,); an update that is the sum itself adds no slope of its distance.
    """
    along = gram @ weights
    common = weights @ along
    squares = gram.diagonal() - 2 * along + common
    scale = gram.diagonal() + common
    distances = squares.where(squares > EPSILON * scale, 0.0).sqrt()
    pulls = torch.where(distances > 0, weights / distances, 0.0)
    slope = distances + turned + pulls.sum() * along - gram @ pulls
    return weights @ (distances + turned), slope


class FedAWA(FederatedCallback):
    """Weighs clients so that their updates lie near their weighted sum, learned from round to round (Shi et al., 2025).

    The weights are λ = softmax(t) over the cohort, where t holds a number for each client, which starts at the client's
    share of all examples, as in the released code: the first weights are nearly uniform. A round takes steps of Adam on
    t, down the slope of Σ_k λ_k (‖Δ_k - Σ_j λ_j Δ_j‖ + 1 - cos(w, w + Δ_k)), where w is the global model. All of it is
    in the inner products of the updates and of w with the updates. The weights are those after the steps, as in the
    paper; the released code takes those before the last step, and keeps t by place in the cohort, not by client.

    Args:
        epochs: number of Adam's steps in each round, at least 1; the released code takes 1.
        lr: learning rate of Adam; the released code's is 0.001, by which the first step moves each entry of t.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"weights"})

    def __init__(self, epochs: int = 1, lr: float = 0.001) -> None:
        check_at_least(1, epochs=epochs)
        check_positive(lr=lr)
        self.epochs, self.lr = epochs, lr

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        sizes = orchestrator.data.sizes.double()
        kept = self.recall("logits", sizes / sizes.sum()).clone()
        clients = list(cohort.clients)
        logits = kept[clients]
        optimizer = torch.optim.Adam([logits], lr=self.lr, betas=BETAS)
        gram, turned = cohort.corrected_gram, self._turned(cohort)
        for _ in range(self.epochs):
            weights = logits.softmax(0)
            slope = misalignment(gram, turned, weights)[1]
            logits.grad = weights * (slope - weights @ slope)
            optimizer.step()
        kept[clients] = logits
        self.state["logits"] = kept
        return cohort.replace(weights=logits.softmax(0))

    def _turned(self, cohort: Cohort) -> Tensor:
        """Return (K,) 1 - cos(w, w + Δ_k); 1 where one of the two models is zero."""
        squared = cohort.anchor.double().square().sum().cpu()
        along = cohort.mixing @ cohort.products(cohort.anchor)
        length = (squared + 2 * along + cohort.corrected_gram.diagonal()).clamp(min=0).sqrt()
        product = squared.sqrt() * length
        return 1 - torch.where(product > 0, (squared + along) / product, 0.0)
