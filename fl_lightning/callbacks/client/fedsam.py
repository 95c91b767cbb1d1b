"""FedSAM: clients follow the gradient at a point uphill, for flat minima."""

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, check_not_negative


def along(gradient: Tensor, length: float, epsilon: float = 0.0) -> Tensor:
    """Scale a vector to a given length; a zero vector stays zero.

    >>> import torch
    >>> from fl_lightning.callbacks.client.fedsam import along
    >>> along(torch.tensor([3.0, 4.0]), length=10.0)
    tensor([6., 8.])

    Args:
        gradient: (…, P) one vector or several.
        length: length of the result.
        epsilon: added to the vector's norm, as some released codes do; a vector much shorter than ``epsilon`` gives a
            shorter result.

    Returns:
        (…, P) scaled vectors.
    """
    norm = gradient.norm(dim=-1, keepdim=True) + epsilon
    return (gradient / torch.where(norm > 0, norm, torch.inf)).mul_(length)


def ahead(point: Tensor, direction: Tensor, length: float) -> Tensor:
    """Go from a point along a direction, by a given length; not at all along a zero vector.

    >>> import torch
    >>> from fl_lightning.callbacks.client.fedsam import ahead
    >>> ahead(torch.tensor([1.0, 1.0]), torch.tensor([3.0, 4.0]), length=10.0)
    tensor([7., 9.])

    Args:
        point: (…, P) where to start.
        direction: (…, P) vectors of any length.
        length: length of the step.

    Returns:
        (…, P) the points where the steps end.
    """
    norm = torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
    smallest = torch.finfo(norm.dtype).tiny
    return torch.addcmul(point, direction, torch.where(norm > smallest, length / norm, 0.0))


def ascent(gradient: Tensor, rho: float, scale: Tensor | None = None) -> Tensor:
    """Compute the perturbation ε of length ρ that raises the loss most, to first order: ρ g / ‖g‖.

    >>> import torch
    >>> from fl_lightning.callbacks.client.fedsam import ascent
    >>> ascent(torch.tensor([3.0, 4.0]), rho=1.0)
    tensor([0.6000, 0.8000])
    >>> ascent(torch.tensor([3.0, 8.0]), rho=5.0, scale=torch.tensor([1.0, 0.5]))  # T g = (3, 4), T² g = (3, 2)
    tensor([3., 2.])

    Args:
        gradient: (…, P) g, of one client or several.
        rho: ρ, the radius.
        scale: (…, P) T, the scale of each parameter (ASAM): ε = ρ T² g / ‖T g‖, so that ε / T has the length ρ. None
            for T = 1.

    Returns:
        (…, P) ε; zero for a zero gradient.
    """
    return along(gradient, rho) if scale is None else scale * along(scale * gradient, rho)


def following(
    run: LocalRun, closure: Callable[[], Tensor | None], gradient: Callable[[], Tensor]
) -> Callable[[], Tensor | None]:
    """Wrap a client's closure so that the optimizer follows another gradient than the loss's.

    Args:
        run: the client's run.
        closure: evaluates the loss and its gradient at ``run.params``.
        gradient: function that returns the gradient (P,) to follow; called with the loss's gradient in ``run.grads``.
            Without a loss there is no gradient to follow.

    Returns:
        The closure, which returns the loss at ``run.params``.
    """

    def wrapped() -> Tensor | None:
        loss = closure()
        if loss is not None:
            run.grads = gradient()
        return loss

    return wrapped


class FedSAM(FederatedCallback):
    """Takes each client's gradient at a point slightly uphill, for flat minima (Foret et al., 2021; Qu et al., 2022).

    Each step follows the gradient at w + ε, where ε = ρ g(w) / ‖g(w)‖ (Foret et al., 2021, eq. 2 and 3; on clients Qu
    et al., 2022, FedSAM, Algorithm 1, and Caldarola et al., 2022). The norm is over all parameters; for a zero gradient
    ε is zero. Each step costs two forward and backward passes. The second pass draws a new dropout mask, and changes
    neither BatchNorm statistics nor what the module logs.

    Args:
        rho: ρ >= 0, length of ε; 0 is FedAvg. FedGAM's comparison uses 0.1.
        adaptive: True for ASAM (Kwon et al., 2021): ε = ρ T² g / ‖T g‖ with T = |w| + η, so that the scale of a layer
            matters less. ASAM's released code sets T = 1 for biases; here T = |w| + η for biases, too, as in FedGAM's
            released code. ASAM needs a larger ρ; its released code uses 0.5.
        eta: η >= 0 of ASAM, the smallest scale; 0.01 is that of ASAM's released code. FedGAM's released code has 0,
            with which a parameter at zero is not perturbed.

    Raises:
        ConfigurationError: rho or eta is out of range.
    """

    settles = frozenset({"local gradient"})
    stacks = True

    def __init__(self, rho: float = 0.1, adaptive: bool = False, eta: float = 0.01) -> None:
        check_not_negative(rho=rho, eta=eta)
        self.rho, self.adaptive, self.eta = rho, adaptive, eta

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        def uphill() -> Tensor:
            w, g = run.params, run.grads
            point = w + ascent(g, self.rho, w.abs() + self.eta) if self.adaptive else ahead(w, g, self.rho)
            return run.gradient_at(point, closure)

        return following(run, closure, uphill) if self.rho else closure
