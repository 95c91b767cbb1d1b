"""FedSOL: gradients of the local loss where leaving the global model's predictions matters little."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_not_negative, check_positive, evaluating
from fl_lightning.callbacks.client.classes import logits_and_targets
from fl_lightning.callbacks.client.features import forward_inputs, weights_at
from fl_lightning.callbacks.client.fedsam import along, following


def strength(moved: Tensor) -> Tensor:
    """Compute how far each entry of one parameter may be perturbed: |moved|, each column scaled to unit norm.

    >>> import torch
    >>> from fl_lightning.callbacks.client.fedsol import strength
    >>> strength(torch.tensor([[-3.0, 0.0], [4.0, 0.0]]))
    tensor([[0.6000, 0.0000],
            [0.8000, 0.0000]])

    Args:
        moved: (d, …) what the parameter has moved by since the client's start; a column is what lies along d.

    Returns:
        (d, …) entries from 0 to 1; a column that has not moved stays zero.
    """
    return F.normalize(moved.abs(), dim=0)


class FedSOL(FederatedCallback):
    """Takes each client's gradient where its distance from the global model's predictions grows (Lee et al., 2024).

    A step follows the gradient of the local loss at w + ρ Λ ∘ g / ‖g‖. g (P,) is the gradient at w of the mean KL
    divergence of the client's class probabilities from those of the model that the client starts from, at the
    temperature τ, and Λ says for each parameter how far it has moved (:func:`strength`): ``fedsol_adaptive`` of the
    released code, whose other form has Λ = 1. At a client's start Λ is zero, and the step is FedAvg's. The teacher is
    in evaluation mode. Loss, metrics and BatchNorm statistics are those at w. A step costs three passes and the
    teacher's forward pass. What rules that are listed after FedSOL add to the loss counts in g, too.

    Args:
        rho: ρ >= 0, length of the perturbation where Λ is 1; 0 is FedAvg.
        temperature: τ > 0; the released code has 3.

    Raises:
        ConfigurationError: an argument is out of range; the module has no ``forward``; in a round, ``training_step``
            returns no dict with "logits" and "targets".
    """

    settles = frozenset({"local gradient"})
    stacks = True

    _compares = False  # whether the present pass is the one of g

    def __init__(self, rho: float = 1.0, temperature: float = 3.0) -> None:
        check_not_negative(rho=rho)
        check_positive(temperature=temperature)
        self.rho, self.temperature = rho, temperature

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        self._weights_at, self._flat, self._compares = weights_at(orchestrator), orchestrator.flat, False

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        if not self._compares:
            return loss
        logits, _ = logits_and_targets(self, run, outputs)
        with evaluating(run.module), torch.no_grad():
            inputs = forward_inputs(run.module, batch)
            teacher = functional_call(run.module, self._weights_at(run.anchor), (inputs,))
        known = (teacher.to(logits) / self.temperature).log_softmax(1)
        student = (logits / self.temperature).log_softmax(1)
        return F.kl_div(student, known, reduction="batchmean", log_target=True)

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        def perturbed_gradient() -> Tensor:
            self._compares = True
            away = run.gradient_at(run.params.clone(), closure)
            self._compares = False
            step = self._strength(run.params - run.anchor) * along(away, self.rho)
            return run.gradient_at(run.params + step, closure)

        return following(run, closure, perturbed_gradient) if self.rho else closure

    def _strength(self, moved: Tensor) -> Tensor:
        """Return Λ (…, P) for what all parameters have moved by (…, P), of one client or several."""

        def of_one(client: Tensor) -> Tensor:
            return self._flat.join([strength(part) for part in self._flat.views(client)])

        return torch.vmap(of_one)(moved.reshape(-1, moved.shape[-1])).view_as(moved)
