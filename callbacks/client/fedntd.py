"""FedNTD: clients that do not forget what the global model knows of the other classes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server
from fl_lightning.callbacks.client.classes import logits_and_targets
from fl_lightning.callbacks.client.features import forward_inputs, weights_at
from fl_lightning.engine.rules.server import evaluating
from fl_lightning.errors import check_not_negative, check_positive


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
    others = ~F.one_hot(targets, logits.shape[1]).bool()
    student, known = (each[others].view(len(each), -1) / temperature for each in (logits, teacher))
    apart = F.kl_div(student.log_softmax(1), known.log_softmax(1), reduction="batchmean", log_target=True)
    return apart * temperature**2


class FedNTD(FederatedCallback):
    """Adds a distillation of the global model's not-true classes to each client's loss (Lee et al., 2022).

    The teacher is the model that the client starts from, in evaluation mode. Clients train one by one.

    Args:
        beta: β >= 0, weight of the term.
        temperature: τ > 0.

    Raises:
        ConfigurationError: an argument is out of range; the module has no ``forward``; in a round, ``training_step``
            returns no dict with "logits" and "targets".
    """

    def __init__(self, beta: float = 1.0, temperature: float = 1.0) -> None:
        check_not_negative(beta=beta)
        check_positive(temperature=temperature)
        self.beta, self.temperature = beta, temperature

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.kept |= {f"fedntd/{name}": value for name, value in weights_at(orchestrator)(run.anchor).items()}

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        logits, targets = logits_and_targets(self, run, outputs)
        weights = {k.removeprefix("fedntd/"): v for k, v in run.kept.items() if k.startswith("fedntd/")}
        with evaluating(run.module), torch.no_grad():
            teacher = functional_call(run.module, weights, (forward_inputs(run.module, batch),))
        return loss + self.beta * not_true_distillation(logits, teacher.to(logits), targets, self.temperature)
