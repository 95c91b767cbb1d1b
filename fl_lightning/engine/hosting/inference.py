"""Replace the tensors that an evaluation in inference mode leaves in a module."""

from typing import Any

from torch import Tensor, nn
from torchmetrics import Metric


def leave_inference_mode(module: nn.Module) -> None:
    """Replace inference tensors among a module's buffers and metric states by normal tensors of the same values.

    ``trainer.validate`` and ``trainer.test`` evaluate in inference mode, in which torchmetrics makes new states. Such
    states refuse the in-place updates of a later fit, whose validation is not in inference mode. States that several
    metrics share stay shared.
    """
    replaced: dict[int, tuple[Tensor, Tensor]] = {}  # id: the inference tensor, kept so that the id is its own, and new

    def normal(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_inference():
            return replaced.setdefault(id(value), (value, value.clone()))[1]
        if isinstance(value, list):  # a metric that collects tensors
            value[:] = map(normal, value)
        return value

    for part in module.modules():
        states = part.metric_state if isinstance(part, Metric) else {}
        for name, value in {**dict(part.named_buffers(recurse=False)), **states}.items():
            if (new := normal(value)) is not value:
                setattr(part, name, new)
