"""What a round leaves beside its scalars."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lib.command import rows
from lib.toy import Quadratic, ToyData, trainer
from lib.wandb_files import wandb_history
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator
from fl_lightning.runs.folder.run_folder import RunFolder
from fl_lightning.runs.loggers.round_values import is_due, log_each, log_figure, log_table, save_arrays


class Recorder(FederatedCallback):
    """Records all there is in every round."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.due: list[int] = []
        self.drawn = 0

    def on_round_end(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
        log_each(orchestrator, "clients/steps", cohort.clients, cohort.num_steps)
        log_figure(orchestrator, "some/picture", self.draw, cohort.round)
        log_table(orchestrator, "some/table", {"text": ["a < b", "ö"], "steps": [1, cohort.round]}, cohort.round)
        if is_due(orchestrator, self.every):
            self.due.append(cohort.round)
            save_arrays(orchestrator, f"steps_{cohort.round}", clients=cohort.clients, steps=cohort.num_steps)

    def draw(self) -> Figure:
        self.drawn += 1
        figure = Figure((1, 1), dpi=10)
        figure.add_subplot().plot([0, 1])
        return figure


def fit(recorder: Recorder, folder: Path, rounds: int = 2, **settings: Any) -> Path:
    """Rounds of the toy, whose clients 0 and 1 take 2 and 3 steps; the run folder."""
    logger = RunFolder(folder, "toy")
    made = trainer(recorder, rounds=rounds, **{"logger": [logger], **settings})
    made.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    return Path(logger.log_dir)


def test_values_of_clients_and_arrays_are_in_the_run_folder(tmp_path: Path) -> None:
    """The values in their round's row, the arrays as whole files; nothing is drawn for a logger without pictures."""
    folder = fit(recorder := Recorder(), tmp_path)
    found = [(row["round"], row["clients/steps/0"], row["clients/steps/1"]) for row in rows(folder / "metrics.csv")]
    assert found == [(1, 2, 3), (2, 2, 3)]
    assert sorted(path.name for path in (folder / "arrays").iterdir()) == ["steps_1.npz", "steps_2.npz"]
    with np.load(folder / "arrays" / "steps_2.npz") as arrays:
        assert {name: arrays[name].tolist() for name in arrays.files} == {"clients": [0, 1], "steps": [2, 3]}
    assert recorder.drawn == 0


@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_due_rounds(tmp_path: Path, every: int, due: list[int]) -> None:
    fit(recorder := Recorder(every), tmp_path, rounds=5)
    assert recorder.due == due


def test_pictures_and_values_of_clients_in_tensorboard(tmp_path: Path) -> None:
    """One drawing serves two loggers; the step is the round."""
    boards = [TensorBoardLogger(tmp_path, name) for name in ("one", "two")]
    fit(recorder := Recorder(), tmp_path, logger=boards)
    assert recorder.drawn == 2
    for board in boards:
        events = EventAccumulator(board.log_dir).Reload()
        assert [image.step for image in events.Images("some/picture")] == [1, 2]
        assert [(scalar.step, scalar.value) for scalar in events.Scalars("clients/steps/1")] == [(1, 3), (2, 3)]


def test_tables_are_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B, TensorBoard and MLflow have the table of each round; letters are no markup."""
    from wandb import teardown

    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb = WandbLogger(save_dir=tmp_path, name="w")
    board = TensorBoardLogger(tmp_path, "board")
    kept = MLFlowLogger("e", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", artifact_location=str(tmp_path / "kept"))
    fit(Recorder(), tmp_path, logger=[wandb, board, kept])
    wandb.experiment.finish()
    teardown()  # else later runs of this process would have its settings
    events = EventAccumulator(board.log_dir).Reload().Tensors("some/table/text_summary")
    assert [event.step for event in events] == [1, 2]
    pages = [event.tensor_proto.string_val[0].decode() for event in events]
    pages += [page.read_text("utf-8") for page in sorted((tmp_path / "kept").rglob("table_?.html"))]
    (file,) = tmp_path.rglob("run-*.wandb")
    pages += [
        (file.parent / "files" / row["some/table.path"]).read_text("utf-8")
        for row in wandb_history(file)
        if "some/table.path" in row
    ]
    assert len(pages) == 6
    for number, page in enumerate(pages):
        for cell in ("a &lt; b", "ö", number % 2 + 1):
            assert f"<td>{cell}</td>" in page
