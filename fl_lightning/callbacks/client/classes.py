"""What rules that know classes ask for: logits and targets of a step, and the clients' numbers of examples by class."""

from typing import Any

import torch
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


def class_counts(rule: FederatedCallback, data: FederatedDataModule, with_new: bool = False) -> Tensor:
    """Return the numbers of examples (N, C) of each client and class, for clients' own work those of new ones, too.

    Raises:
        ConfigurationError: the data module does not know them.
    """
    counts = data.class_counts()
    if with_new and data.num_new and counts is not None:
        new = data.new_class_counts()
        counts = None if new is None else torch.cat([counts, new])
    if counts is None:
        kind = type(data.named).__name__
        raise ConfigurationError(
            f"{type(rule).__name__} needs the clients' class counts, but {kind}.class_counts() returns None: define "
            f"it, or remove {type(rule).__name__}"
        )
    return counts
