"""What the table's rows do not do yet, or never will, in one place: marks to strike out."""

from typing import Any

import pytest

from zoo.table import ROWS

# What is not so yet: reason, tests, rows. A row that begins to hold fails the suite: strike it out here.
LEFT = "what a client leaves outside of its parameters and buffers reaches the next client"
TEACHERS = "MomentumTeacher MeanTeacher Queue Centred TargetNetwork NewTeacher"
SIZES_OF_RUN = "the Trainer's sizes, counts and flags are the rounds', not the client's"
ODD = "buffers that change their shape, or appear, or are sparse"
ODD_BUFFERS = "SharedBuffer NoneAtFirst Grows TakesShape RegistersLate Expanded SparseBuffer"
EVERY = "alone order stop failing merged devices"
PENDING: list[tuple[str, str, str]] = [
    (LEFT, "order devices", TEACHERS),
    (LEFT, "failing", "MomentumTeacher MeanTeacher Queue"),
    (LEFT, "merged", TEACHERS + " UnfreezesAtEpoch ReplacesParameter"),
    (LEFT, "order devices", "UnfreezesAtEpoch UnfreezesAtStep FreezesAtStep FreezesStatistics ReplacesParameter"),
    (LEFT, "stop", "UnfreezesAtStep FreezesAtStep FreezesStatistics Feeds"),
    (LEFT, "alone", "UnfreezesAtEpoch UnfreezesAtStep"),
    (LEFT, "failing", "UnfreezesAtEpoch ReplacesParameter GAN PenalisedCritic Collections Lists ComputesItself Feeds"),
    (LEFT, "order failing merged devices", "ExtraState ExtraTensor"),
    (LEFT, "order", "Feeds"),
    ("a checkpoint with an extra state that is no tensor", "stop", "ExtraState"),
    (SIZES_OF_RUN, EVERY, "StopsItself"),
    (SIZES_OF_RUN, "alone order stop devices", "OneCycle"),
    (SIZES_OF_RUN, "alone", "ReadsTrainer Centred CosineByEpochs TimmSchedule WarmUp SkipsSteps ByEpoch ByStep"),
    (SIZES_OF_RUN, "alone order devices", "ByProgress ByLoader"),
    (SIZES_OF_RUN, "failing", "Centred"),
    (SIZES_OF_RUN, "stop", "CosineByEpochs"),
    (SIZES_OF_RUN, "alone order failing devices", "AccumulatesItself"),
    ("a client sees the other devices", "devices", "ByDevices GathersAll ComputesItself Feeds"),
    ("every device validates on all examples, and sums are added up", "devices", "Accuracies"),
    ("toggles of manual optimization", EVERY, "TogglesModel TogglesFrozen"),
    (ODD, EVERY, ODD_BUFFERS),
    ("on_validation_model_eval is not called", EVERY, "SamplesInValidation"),
    ("torch.compile around the module", EVERY, "CompiledModule"),
    ("checkpoints of a part of the model", "stop", "AdaptersSaved"),
    ("two parameters of one memory", "alone stop", "TiedByData"),
    ("the parameters' memory format is lost", "alone", "ChannelsLast Transposed"),
    ("data are made in the run's precision", "64-true", "Classifier AugmentedExamples"),
    ("logs are plain means over batches", "logged", "GAN Logs"),
]
# A row where the design itself says no: reason, test, row.
OUTSIDE = [("a buffer that is no part of checkpoints is not resumed", "stop", "NotSaved")]
# These end both processes today, or let them wait for ever: they are not started on two devices.
FATAL = {"GathersAll", "ComputesItself", "Feeds"}


def rows(test: str) -> list[Any]:
    """The table as a test's parameters, with the marks of PENDING and OUTSIDE."""
    reasons = {
        name: reason for reason, tests, names in PENDING + OUTSIDE if test in tests.split() for name in names.split()
    }
    assert not reasons.keys() - {str(row) for row in ROWS}, "a mark for a row that is not in the table"
    marks = {name: [pytest.mark.xfail(strict=True, reason=reason)] for name, reason in reasons.items()}
    return [pytest.param(row, marks=marks.get(str(row), []), id=str(row)) for row in ROWS]
