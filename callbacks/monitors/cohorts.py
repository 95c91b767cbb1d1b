"""SaveCohorts: which clients take part, in a file."""

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedDataModule, Monitor
from fl_lightning.runs.folder import whole


class SaveCohorts(Monitor):
    """Writes the cohorts of all rounds when training begins, as the sampler ``FixedSchedule`` reads them.

    Line r holds the client ids of round r. A run with the same seed whose sampler is FixedSchedule on that file is the
    same run.

    Args:
        path: of the file, relative to the run folder, or to the working directory where there is no run folder.
    """

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
        # Not earlier: a run that fails must not touch the file of an earlier one.
        data: FederatedDataModule = trainer.datamodule  # type: ignore[attr-defined]  # set outside Trainer.__init__
        rounds = range(1, (trainer.max_epochs or 0) + 1)
        lines = [" ".join(map(str, data.cohort(round))) + "\n" for round in rounds]
        path = Path(trainer.log_dir or "") / self.path  # the folder is known to all devices only when all ask
        if trainer.is_global_zero:
            with whole(path) as part:
                part.write_text("".join(lines))
