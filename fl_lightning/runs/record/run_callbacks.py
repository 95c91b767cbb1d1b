"""run_callbacks: the callbacks with which the command line records and shows a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint, ModelSummary

from fl_lightning.runs.display.hidden_messages import hide_unhelpful
from fl_lightning.runs.display.progress import RoundProgress
from fl_lightning.runs.display.timer import RoundTimer
from fl_lightning.runs.display.traffic import TrafficMonitor
from fl_lightning.runs.folder.checkpoints import BestCheckpoint, LastCheckpoint
from fl_lightning.runs.record.environment import NOTHING, RunTracking


def run_callbacks(
    own: Iterable[Callback] = (),
    checkpoints: bool = True,
    progress: bool = True,
    summary: bool = False,
    changed: Mapping[str, Any] | None = NOTHING,
) -> list[Callback]:
    """Add the command line's callbacks to a run's own callbacks, in the order in which they work.

    With these callbacks and the logger :class:`RunFolder`, a run from Python writes the same run folder as the command
    line; its ``config.yaml`` is a record, see :func:`record_of`. Messages of Lightning that help nobody here are hidden
    in this process, such as tips and a warning that each round has few batches, and the source of our own warnings.

    Args:
        own: the rules, monitors and other callbacks of the run, in their order.
        checkpoints: whether to save ``last.ckpt`` and, unless the run has a ModelCheckpoint of its own, ``best.ckpt``;
            set False for a Trainer with ``enable_checkpointing=False``.
        progress: whether to show the progress; set False for a Trainer with ``enable_progress_bar=False``.
        summary: whether the Trainer may print its table of the module; set True for a Trainer with
            ``enable_model_summary=True``. A ModelSummary among the run's own callbacks prints in any case.
        changed: the settings that a resumed run changes, see :class:`RunTracking`.
    """
    hide_unhelpful()
    own = list(own)
    timer = RoundTimer()
    if not summary and not any(isinstance(callback, ModelSummary) for callback in own):
        own.append(ModelSummary(max_depth=0))  # prints nothing, and keeps the Trainer from adding one that does
    if checkpoints:
        chosen = any(isinstance(callback, ModelCheckpoint) for callback in own)
        own += [LastCheckpoint()] if chosen else [LastCheckpoint(), BestCheckpoint()]
    return [timer, RunTracking(changed), TrafficMonitor(), *own, *([RoundProgress(timer)] if progress else [])]
