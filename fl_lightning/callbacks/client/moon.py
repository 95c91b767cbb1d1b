"""MOON: model-contrastive federated learning."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, LocalRun, Server, check_not_negative, check_positive
from fl_lightning.callbacks.client.features import FeatureRule, forward_inputs, weights_at


def contrastive_loss(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float) -> Tensor:
    """Mean of -log(e^(s_g/T) / (e^(s_g/T) + e^(s_p/T))) over the examples of a batch (eq. 3).

    s_g is the cosine of z with z_global, s_p the cosine of z with z_previous.

    Features that are as near to one model's as to the other's give ln 2:

    >>> import torch
    >>> from fl_lightning.callbacks.client.moon import contrastive_loss
    >>> z, apart = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> contrastive_loss(z, z_global=z, z_previous=z, temperature=1.0)
    tensor(0.6931)
    >>> contrastive_loss(z, z_global=z, z_previous=apart, temperature=1.0)  # s_g = 1, s_p = 0: ln(1 + 1/e)
    tensor(0.3133)

    Args:
        z: (N, d) features; a zero row has cosine 0 with every vector.
        z_global: (N, d) features of the same examples under the global model.
        z_previous: (N, d) features of the same examples under the client's previous model.
        temperature: T > 0, divides the cosines.

    Returns:
        A scalar.
    """
    cosines = torch.stack([F.cosine_similarity(z, z_global), F.cosine_similarity(z, z_previous)], dim=1)
    return F.cross_entropy(cosines / temperature, torch.zeros(len(z), dtype=torch.int64, device=z.device))


class MOON(FeatureRule):
    """Adds a term to each client's loss that pulls the client's features to the global model's (Li et al., 2021).

    The loss gains μ times :func:`contrastive_loss`, which also pushes the features away from those of the client's
    previous model, the model that its last participation ended with. In a client's first participation there is no term
    (the released code takes a randomly initialised network as the previous model of clients that first take part after
    round 1). The global and the previous model see the batch in evaluation mode, as in the released code, through the
    module's ``forward`` of ``batch[0]``, or of the batch if it is a tensor. The previous model gets the global model's
    buffers, since rules use no clients' buffers; the released code keeps the previous model's own BatchNorm statistics.

    Args:
        mu: μ >= 0, weight of the term; 0 is FedAvg. The paper tunes μ among 0.1, 1, 5 and 10.
        temperature: T > 0, divides the cosines.
        layer: name of the layer whose output the features are, in the paper a projection head
            (:class:`WithProjection`); by default the features are the classifier's input, see :class:`FeatureRule`.

    Raises:
        ConfigurationError: an argument is out of range; in round 1, the module has no such layer or no ``forward``.
    """

    stacks = True

    def __init__(self, mu: float = 1.0, temperature: float = 0.5, layer: str | None = None) -> None:
        check_not_negative(mu=mu)
        check_positive(temperature=temperature)
        super().__init__(layer)
        self.mu, self.temperature = mu, temperature

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        if not self.mu:
            return
        super().on_client_start(orchestrator, run)
        name = f"model/{run.client}"
        run.kept["moon/previous"] = self.recall(name, run.anchor)
        run.kept["moon/weight"] = torch.tensor(self.mu if name in self.state else 0.0).to(run.anchor)
        self._weights_at = weights_at(orchestrator)

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        if not self.mu:
            return loss
        z, inputs = self.features(run), forward_inputs(run.module, batch)
        models = (run.anchor, run.kept["moon/previous"])
        z_global, z_previous = (self.features_at(run, self._weights_at(model), inputs) for model in models)
        return loss + run.kept["moon/weight"] * contrastive_loss(z, z_global, z_previous, self.temperature)

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if self.mu:
            models = zip(cohort.clients, cohort.rows(), strict=True)
            self.state.update({f"model/{client}": (cohort.anchor + delta).cpu() for client, delta in models})
