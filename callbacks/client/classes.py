"""What rules that know classes ask for: logits and targets of a step, and the clients' numbers of examples by class."""

from typing import Any

from torch import Tensor

from fl_lightning import ConfigurationError, FederatedCallback, FederatedDataModule, LocalRun


def logits_and_targets(rule: FederatedCallback, run: LocalRun, outputs: Any) -> tuple[Tensor, Tensor]:
    """Return the "logits" (B, C, …) and "targets" (B, …) that a training step returned.

    Raises:
        ConfigurationError: the step returned no such dict.
    """
    if not isinstance(outputs, dict) or not {"logits", "targets"} <= outputs.keys():
        raise ConfigurationError(
            f"{type(rule).__name__} needs {type(run.module).__name__}.training_step to return a dict with 'loss', "
            f"'logits' and 'targets', got {sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__}"
        )
    return outputs["logits"], outputs["targets"]


def class_counts(rule: FederatedCallback, data: FederatedDataModule) -> Tensor:
    """Return the numbers of examples (N, C) of each client and class.

    Raises:
        ConfigurationError: the data module does not know them.
    """
    if (counts := data.class_counts()) is None:
        kind = type(data.named).__name__
        raise ConfigurationError(
            f"{type(rule).__name__} needs the clients' class counts, but {kind}.class_counts() returns None: define "
            f"it, or remove {type(rule).__name__}"
        )
    return counts
