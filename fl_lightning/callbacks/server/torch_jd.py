"""TorchJD: weights that the library of that name finds for conflicting updates."""

from importlib import import_module
from typing import Any

from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server
from fl_lightning.errors import nearest, values_of

SUFFIX = "Weighting"
OURS = {  # what rules of the package do in place of weightings
    "Krum": "Krum",
    "Mean": "FedAvg with weighting: uniform",
    "PCGrad": "PCGrad",
    "Random": "FedAvg, since random weights resolve no conflict",
    "Sum": "FedAvg with weighting: uniform, and SGD with lr K as model.server_optimizer",
}


class TorchJD(FederatedCallback):
    """Sets the weights by a weighting of the library TorchJD, which solves conflicts (Quinton & Rey, 2024).

    A weighting makes weights (K,) of the updates' Gram matrix (K, K); what it draws is seeded by the round. Weightings
    with a memory (GradVac, ExcessMTL, …) are refused: their memory is of fixed tasks, and cohorts change. So are those
    that are rules of the package: Krum, Mean, PCGrad, Random and Sum.

    Args:
        weighting: name of a weighting, such as UPGrad, DualProj, MGDA, IMTLG or AlignedMTL.
        divide: whether to divide the weights by K.
        init_args: arguments of the weighting's class, such as ``{"alpha": 1.0}`` for FairGrad.

    Raises:
        ConfigurationError: TorchJD has no such weighting without a memory, or a rule of the package does the same;
            ``init_args`` are not its arguments.
        ModuleNotFoundError: TorchJD is not installed.
    """

    settles = frozenset({"weights"})

    def __init__(
        self, weighting: str = "UPGrad", divide: bool = False, init_args: dict[str, Any] | None = None
    ) -> None:
        if weighting in OURS:
            raise ConfigurationError(f"TorchJD's {weighting} is left to a rule of the package: use {OURS[weighting]}")
        found = vars(import_module("torchjd.aggregation"))
        names = [
            name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX) and not hasattr(found[name], "reset")
        ]
        names = [name for name in names if name not in ("", "Constant", *OURS)]
        if weighting not in names:
            raise ConfigurationError(
                f"TorchJD has no weighting {weighting!r} without a memory: did you mean "
                f"{nearest(weighting, names) or ', '.join(names)}?"
            )
        try:
            self._weigh = found[f"{weighting}{SUFFIX}"](**(init_args or {}))
        except (TypeError, ValueError, AttributeError, ImportError) as error:
            raise ConfigurationError(f"TorchJD cannot make {weighting} with init_args={init_args}: {error}") from error
        self.weighting, self.divide, self.init_args = weighting, divide, init_args

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        with orchestrator.server_side("torchjd"), values_of("TorchJD"):
            weights = self._weigh(cohort.corrected_gram).double()
        return cohort.replace(weights=weights / len(weights) if self.divide else weights)
