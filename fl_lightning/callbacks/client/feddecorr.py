"""FedDecorr: a penalty on correlated features, against dimensional collapse."""

from typing import Any, Literal

from torch import Tensor
from typing_extensions import override

from fl_lightning import LocalRun, Server, check_choice, check_not_negative
from fl_lightning.callbacks.client.features import FeatureRule

EPSILON = 1e-8  # added to variances: a feature that is constant in a batch correlates with none


def decorrelation(features: Tensor, scale: Literal["released", "paper"]) -> Tensor:
    """Measure how correlated the features of a batch are.

    Z (N, d) are the features minus their means, divided by √(unbiased variance + 1e-8). Then Zᵀ Z = (N-1) K, where K
    (d, d) is the correlation matrix, whose diagonal is 1.

    Two examples whose two features are equal: all entries of K are 1.

    >>> import torch
    >>> from fl_lightning.callbacks.client.feddecorr import decorrelation
    >>> features = torch.tensor([[0.0, 0.0], [2.0, 2.0]]).double()
    >>> round(float(decorrelation(features, "paper")), 4), round(float(decorrelation(features, "released")), 4)
    (1.0, 0.5)

    Args:
        features: (N, d) d features of each of N examples.
        scale: "released" returns the mean of the squared off-diagonal entries of Zᵀ Z, divided by N; "paper" returns
            ‖K‖²_F / d².

    Returns:
        A scalar; 0 for a single example, and on the released scale for a single feature.
    """
    count, size = features.shape
    if count == 1:
        return features.new_zeros(())
    z = (features - features.mean(0)) / (features.var(0) + EPSILON).sqrt()
    products = z.T @ z
    if scale == "paper":
        return (products / (count - 1)).square().mean()
    others = products - products.diagonal().diag()
    return others.square().sum() / max(size * (size - 1), 1) / count


class FedDecorr(FeatureRule):
    """Adds a penalty on correlated features to each client's loss, against dimensional collapse (Shi et al., 2022).

    The loss gains β times the :func:`decorrelation` of the batch's features. The scales of the paper's formula and of
    its released code differ by a factor of about (N-1)²/N, and the paper's includes the diagonal: β does not carry over
    from one scale to the other.

    Args:
        beta: β >= 0, weight of the penalty; 0 is FedAvg. The paper uses 0.1.
        scale: "released" or "paper", see :func:`decorrelation`.
        layer: name of the layer whose output the features are; by default the features are the classifier's input, see
            :class:`FeatureRule`.

    Raises:
        ConfigurationError: an argument is out of range; in round 1, the module has no such layer.
    """

    stacks = True

    def __init__(
        self, beta: float = 0.1, scale: Literal["released", "paper"] = "released", layer: str | None = None
    ) -> None:
        check_not_negative(beta=beta)
        check_choice("scale", scale, "released", "paper")
        super().__init__(layer)
        self.beta, self.scale = beta, scale

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        if self.beta:
            super().on_client_start(orchestrator, run)

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        return loss + self.beta * decorrelation(self.features(run), self.scale) if self.beta else loss
