"""SignAgreement: gradient agreement by sign (Agr-Sum, Agr-Rand)."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_choice


def same_sign(values: Tensor) -> Tensor:
    """Tell for each column whether all values have the same sign; a zero agrees with nothing.

    >>> import torch
    >>> from fl_lightning.callbacks.server.sign_agreement import same_sign
    >>> same_sign(torch.tensor([[2.0, -1.0, 3.0, 0.0], [1.0, -3.0, -1.0, 4.0]])).tolist()
    [1.0, 1.0, 0.0, 0.0]

    Args:
        values: (K, B) the values of K clients in B coordinates.

    Returns:
        (B,) 1 where all values are above zero or all are below, else 0.
    """
    agreed = (values.amin(0) > 0) | (values.amax(0) < 0)
    return agreed.to(values)


class SignAgreement(FederatedCallback):
    """Averages the updates where all have the same sign, and leaves out the other coordinates (Mansilla et al., 2021).

    Mansilla et al., 2021, "Domain Generalization via Gradient Surgery", Agr-Sum and Agr-Rand. Clients stand for
    domains, updates for gradients. As in the released code, a zero agrees with nothing. The run's weights count; the
    published rule adds the gradients, which is K times the step with equal weights (:class:`FedAvg`'s "uniform"). The
    larger the cohort, the fewer coordinates agree: ``ConflictMonitor(signs=True)`` logs the share that does not. A
    cohort in which no coordinate agrees leaves the model as it is.

    Args:
        others: the step in the other coordinates: "zero" (Agr-Sum), or "random" (Agr-Rand), draws from a normal
            distribution whose standard deviation is the mean size of the step where all agree.

    Raises:
        ConfigurationError: ``others`` is neither.
    """

    def __init__(self, others: Literal["zero", "random"] = "zero") -> None:
        check_choice("others", others, "zero", "random")
        self.others = others

    @override
    def reduce(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        agreed = cohort.by_coordinate(same_sign)
        step = agreed * cohort.combine(cohort.weights @ cohort.mixing)
        if self.others == "zero":
            return step
        size = step.double().abs().sum() / agreed.count_nonzero().clamp(min=1)
        generator = orchestrator.generator("sign agreement", cohort.round)
        noise = torch.randn(len(step), generator=generator, dtype=step.dtype).to(step.device)
        return step + (1 - agreed) * float(size) * noise
