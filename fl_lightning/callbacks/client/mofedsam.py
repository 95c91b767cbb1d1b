"""MoFedSAM: the last round's direction, mixed into gradients from uphill."""

from collections.abc import Callable

from torch import Tensor
from typing_extensions import override

from fl_lightning import LocalRun, check_not_negative
from fl_lightning.callbacks.client.fedcm import FedCM
from fl_lightning.callbacks.client.fedsam import ahead, following


class MoFedSAM(FedCM):
    """Mixes the last round's direction into each client's gradient taken uphill, for flat minima (Qu et al., 2022).

    A client follows α g(w_k + ρ g / ‖g‖) + (1 - α) Δ: :class:`FedSAM`'s gradient in :class:`FedCM`'s mixture. The
    ascent step is along the client's own gradient, without Δ, as in FL-Simulator, the code of FedSpeed's authors.

    Args:
        alpha: α in (0, 1], share of the client's gradient; 1 is FedSAM.
        rho: ρ >= 0, length of the ascent step; 0 is FedCM.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    stacks = True

    def __init__(self, alpha: float = 0.1, rho: float = 0.1) -> None:
        super().__init__(alpha)
        check_not_negative(rho=rho)
        self.rho = rho

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        def uphill() -> Tensor:
            return run.gradient_at(ahead(run.params, run.grads, self.rho), closure)

        sharp = following(run, closure, uphill) if self.rho else closure
        return super().closure(run, sharp)
