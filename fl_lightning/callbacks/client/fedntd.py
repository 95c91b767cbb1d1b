"""FedNTD: clients that do not forget what the global model knows of the other classes."""

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_not_negative, check_positive, evaluating
from fl_lightning.callbacks.client.classes import logits_and_targets
from fl_lightning.callbacks.client.features import forward_inputs, weights_at


def not_true_distillation(logits: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Compute KL(teacher ‖ student) over the classes that are not an example's own, times τ², mean over the examples.

    >>> import torch
    >>> from fl_lightning.callbacks.client.fedntd import not_true_distillation
    >>> logits, teacher = torch.tensor([[1.0986123, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 9.0]])  # 3 : 1 and 1 : 1
    >>> not_true_distillation(logits, teacher, torch.tensor([2]), temperature=1.0)  # ½ ln (½ / ¾) + ½ ln (½ / ¼)
    tensor(0.1438)

    Args:
        logits: (B, C) the student's.
        teacher: (B, C) the teacher's.
        targets: (B,) class indices.
        temperature: τ > 0.
    """
    own = targets[:, None] == torch.arange(logits.shape[1], device=targets.device)
    never = torch.finfo(logits.dtype).min / 2  # a logit of no probability
    student = (logits / temperature).masked_fill(own, never).log_softmax(1)
    known = (teacher / temperature).masked_fill(own, never).log_softmax(1)
    return (known.exp() * (known - student)).sum(1).mean() * temperature**2


class FedNTD(FederatedCallback):
    """Adds a distillation of the global model's not-true classes to each client's loss (Lee et al., 2022).

    The teacher is the model that the client starts from, in evaluation mode.

    Args:
        beta: β >= 0, weight of the term.
        temperature: τ > 0.

    Raises:
        ConfigurationError: an argument is out of range; the module has no ``forward``; in a round, ``training_step``
            returns no dict with "logits" and "targets".
    """

    stacks = True

    def __init__(self, beta: float = 1.0, temperature: float = 1.0) -> None:
        check_not_negative(beta=beta)
        check_positive(temperature=temperature)
        self.beta, self.temperature = beta, temperature

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        self._weights_at = weights_at(orchestrator)

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        logits, targets = logits_and_targets(self, run, outputs)
        with evaluating(run.module), torch.no_grad():
            inputs = forward_inputs(run.module, batch)
            teacher = functional_call(run.module, self._weights_at(run.anchor), (inputs,))
        return loss + self.beta * not_true_distillation(logits, teacher.to(logits), targets, self.temperature)
