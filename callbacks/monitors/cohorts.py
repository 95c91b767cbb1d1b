"""SaveCohorts: a file with the cohorts of all rounds."""

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedDataModule, Monitor
from fl_lightning.engine.files import whole


class SaveCohorts(Monitor):
    """Writes the cohorts of all rounds to a file that the sampler ``FixedSchedule`` can read.

    Line r holds the client ids of round r. The file is written when training begins. A run with the same seed whose
    sampler is FixedSchedule on this file is the same run.

    Args:
        path: path of the file, relative to the run folder, or to the working directory if there is no run folder.
    """

    streams = True

    def __init__(self, path: str = "cohorts.txt") -> None:
        self.path = path

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and (trainer.max_epochs or 0) < 0:
            raise ConfigurationError(
                "SaveCohorts writes the cohorts of all rounds, and trainer.max_epochs sets no end to them: set it"
            )

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not before: a run that fails at its start must not overwrite the file of an earlier run.
        data: FederatedDataModule = trainer.datamodule  # type: ignore[attr-defined]  # set outside Trainer.__init__
        rounds = range(1, (trainer.max_epochs or 0) + 1)
        lines = [" ".join(map(str, data.cohort(round))) + "\n" for round in rounds]
        path = Path(trainer.log_dir or "") / self.path  # all devices must ask: Lightning broadcasts the folder
        if trainer.is_global_zero:
            with whole(path) as part:
                part.write_text("".join(lines))
