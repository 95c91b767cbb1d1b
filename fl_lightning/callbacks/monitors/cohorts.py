"""SaveCohorts: a file with the cohorts of all rounds."""

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedDataModule, Monitor
from fl_lightning.files import whole


class SaveCohorts(Monitor):
    """Writes the cohorts of all rounds to a file that the sampler ``FixedSchedule`` can read.

    Line r of ``cohorts.txt`` holds the client ids of round r, separated by spaces. The file is written when training
    begins, into the run folder, or into the working directory if there is no run folder. A run with the same seed and
    the sampler ``FixedSchedule`` reading this file gives the same results.

    Raises:
        ConfigurationError: ``trainer.max_epochs`` sets no last round.
    """

    streams = True

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.max_epochs or 0) < 0:
            raise ConfigurationError(
                "SaveCohorts writes the cohorts of all rounds, but trainer.max_epochs sets no last round: set "
                "trainer.max_epochs"
            )

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not earlier: a run that fails before its first round must not overwrite the file of an earlier run.
        data: FederatedDataModule = trainer.datamodule  # type: ignore[attr-defined]  # set outside Trainer.__init__
        rounds = range(1, (trainer.max_epochs or 0) + 1)
        lines = [" ".join(map(str, data.cohort(round))) + "\n" for round in rounds]
        path = Path(trainer.log_dir or "") / "cohorts.txt"  # on all devices, since log_dir is a broadcast
        if trainer.is_global_zero:
            with whole(path) as part:
                part.write_text("".join(lines))
