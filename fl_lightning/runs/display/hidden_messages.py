"""Hide unhelpful messages of libraries, and the source of this package's warnings. Imports none of them."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
# Unhelpful messages of libraries: log lines by their beginnings, warnings by patterns.
CHATTER = r"(\[rank: \d+\] )?Seed set to|Initializing distributed|-+\ndistributed_backend="
CHATTER += r"|💡|(GPU|TPU|HPU) available|.*litlogger|`Trainer.fit` stopped: `max_epochs"
CHATTER += "|Trainer already configured with model summary"
CHATTER += "|Failed to load CPU gemm_4bit_forward"  # which bitsandbytes looks for on the hub, and does without
LOGGERS = (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.seed",
    "lightning.fabric.utilities.distributed",
    "bitsandbytes.backends.cpu.ops",
)
UNHELPFUL = (
    ".*does not have many workers.*",
    ".*loading a checkpoint outside the 'fit' stage.*",  # the averaged weights are the ones to test
    ".*treespec, LeafSpec.*",
    "LightningCLI's args parameter is intended",
    ".*defined a `validation_step` but have no `val_dataloader`.*",
    ".*recommended to use `self.log.*sync_dist=True.*",
    ".*resuming from a checkpoint that ended before the epoch ended.*",  # Lightning compares rounds with clients
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*`srun` command is available.*",  # on a machine with SLURM; one process needs none
    ".*manual optimization and every_n_train_steps.*",  # the files are those of the new global model
    ".*smaller than the logging interval.*",  # Lightning counts clients, and metrics are logged by round
)


def hide_unhelpful() -> None:
    """Hide the messages in this process, for good, and, once Lightning is imported, the source of our warnings."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_no_chatter)
    for pattern in UNHELPFUL:
        warnings.filterwarnings("ignore", pattern)
    if getattr(warnings.formatwarning, "func", None) is not _format_warning:
        warnings.formatwarning = partial(_format_warning, warnings.formatwarning)


def _format_warning(others: Callable[..., str], message: object, category: type, filename: str, *place: Any) -> str:
    """Write a warning of this package as a line for users; ``others`` writes all other warnings, with their place."""
    if filename.startswith(PACKAGE):
        return f"fl-lightning: warning: {message}\n"
    return others(message, category, filename, *place)


def _no_chatter(record: logging.LogRecord) -> bool:
    return not re.match(CHATTER, record.getMessage())
