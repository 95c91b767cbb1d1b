"""TorchJD: weights that the library of that name finds for conflicting updates."""

from importlib import import_module

from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server
from fl_lightning.errors import nearest

SUFFIX = "Weighting"


class TorchJD(FederatedCallback):
    """Sets the weights by a weighting of the library TorchJD, which solves conflicts (Quinton & Rey, 2024).

    A weighting makes weights (K,) of the updates' Gram matrix (K, K). What it remembers is lost after each round, and
    what it draws is seeded by the round.

    Args:
        weighting: name of a weighting, such as UPGrad, DualProj, MGDA, IMTLG, AlignedMTL or PCGrad.
        divide: whether to divide the weights by K: PCGrad, GradVac and Sum add up what others average, to about K.

    Raises:
        ConfigurationError: TorchJD has no such weighting.
        ModuleNotFoundError: TorchJD is not installed.
    """

    settles = frozenset({"weights"})

    def __init__(self, weighting: str = "UPGrad", divide: bool = False) -> None:
        found = vars(import_module("torchjd.aggregation"))
        names = [name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX) and name != SUFFIX]
        if weighting not in names:
            raise ConfigurationError(
                f"TorchJD has no weighting {weighting!r}: did you mean {nearest(weighting, names) or ', '.join(names)}?"
            )
        self._make, self.weighting, self.divide = found[f"{weighting}{SUFFIX}"], weighting, divide

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        with orchestrator.server_side("torchjd"):
            weights = self._make()(cohort.corrected_gram).double()
        return cohort.replace(weights=weights / len(weights) if self.divide else weights)
