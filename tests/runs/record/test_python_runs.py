"""The config.yaml of a run from Python: which runs are one method, what is not recorded, who refuses the file."""

import logging
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lib.command import TINY, refused, restored, run
from lib.rules import CLIENT_RULES, SERVER_RULES
from lib.toy import GivenData, Linear, Quadratic, ToyData, trainer
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import RichModelSummary

import fl_lightning
from fl_lightning import FederatedCallback, FederatedOrchestrator, RunFolder, run_callbacks
from fl_lightning.callbacks import ConflictMonitor, FedProx
from fl_lightning.datamodules import Digits
from fl_lightning.models import ImageClassifier, TwoNN
from fl_lightning.report.compared.methods import make_methods
from fl_lightning.runs.reader import Run, read_runs
from fl_lightning.runs.record.python_runs import Writer

RULES = {**SERVER_RULES, **CLIENT_RULES}


@pytest.fixture(autouse=True)
def _no_global_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)


def fit(
    *callbacks: Any, client: Any = None, data: Any = None, version: str | None = None, rounds: int = 1, **settings: Any
) -> Run:
    """A round of T from Python, by ``Trainer(logger=RunFolder(…), callbacks=run_callbacks(…))``."""
    logger, path = RunFolder("runs", "mine", version), settings.pop("ckpt_path", None)
    made = trainer(*run_callbacks(callbacks, progress=False), logger=logger, rounds=rounds, enable_checkpointing=True)
    orchestrator = FederatedOrchestrator(client or Quadratic(), **settings)
    made.fit(orchestrator, datamodule=data or ToyData(seed=settings.get("seed", 0)), ckpt_path=path)
    return Run(Path(logger.log_dir))


def methods() -> dict[str, list[Any]]:
    """The seeds of each method of the runs so far."""
    return {each.name: [one.seed for one in each.runs] for each in make_methods(read_runs([Path("runs")]))[0]}


def test_runs_that_differ_in_their_seed_are_a_method() -> None:
    for seed in (1, 2):
        fit(seed=seed)
        fit(FedProx(0.1), ConflictMonitor(), seed=seed)
    assert methods() == {"FedAvg": [1, 2], "FedProx": [1, 2]}
    last = read_runs([Path("runs")])[-1]
    assert (last.method, last.settings["FedProx.mu"], last.rounds) == ("FedProx(mu=0.1)", 0.1, (1, 1))
    assert last.settings["model.client.optimizer.lr"] == 0.1, "as Quadratic.configure_optimizers made it"
    assert last.settings["data.participation"] == 1.0
    assert last.path == last.folder


def inside(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    """A function whose learning rate no attribute tells."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an argument of the orchestrator": ({}, {"local_epochs": 2}),
    "what a function makes on the server": ({"server_optimizer": inside(1.0)}, {"server_optimizer": inside(0.5)}),
    "what a module makes for its clients": ({"client": Linear(2, lr=1.0)}, {"client": Linear(2, lr=0.5)}),
    "a keyword that its optimizer gets": ({"client": Linear(2)}, {"client": Linear(2, momentum=0.5)}),
    "the width of its layers": ({"client": Linear(2)}, {"client": Linear(3)}),
    "an argument of the data": (
        {"data": GivenData(torch.eye(2).double())},
        {"data": GivenData(torch.eye(2).double(), steps=[1, 2])},
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_runs_that_differ_in_more_are_methods(name: str) -> None:
    for settings in DIFFERENT[name]:
        size = settings.get("client", Linear(2)).w.numel()
        fit(**{"client": Linear(2), "data": GivenData(torch.eye(size).double()), **settings})
    assert len(methods()) == 2


def test_seeds_that_differ_are_all_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over the seed of one part alone; then over the seeds of all parts."""
    for seed in (1, 2):
        fit(data=ToyData(seed=seed))
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")  # which seed_everything would leave to the tests that follow
    seed_everything(3)
    fit(seed=3, data=ToyData(seed=3))
    assert [run.seed for run in read_runs([Path("runs")])] == ["model 0, data 1", "model 0, data 2", 3]
    assert len(methods()) == 1


@pytest.mark.parametrize("name", RULES)
def test_all_arguments_of_the_shipped_rules_are_recorded(name: str) -> None:
    """Else a run with another argument would count as the same method."""
    writer = Writer()
    written, make = writer.describe(RULES[name](), ""), RULES[name]
    assert not writer.unknown
    given = make.keywords if isinstance(make, partial) else {}
    assert written["init_args"].items() >= given.items()


class Colour(StrEnum):
    RED = "red"


class Loaded(FederatedCallback):
    """A rule with arguments that no file should hold."""

    def __init__(self, api_key: str, table: torch.Tensor, rows: list[int], function: Any, hidden: int) -> None:
        self.api_key, self.table, self.rows, self.function = api_key, table, rows, function


@pytest.mark.filterwarnings("ignore:.*keys and passwords")
def test_what_is_large_secret_or_not_known_is_not_written() -> None:
    rule = Loaded("very-secret", torch.ones(1000, 7), [5] * 999, lambda: None, 3)
    found = fit(rule)
    text = (found.folder / "config.yaml").read_text()
    (written,) = found.config["trainer"]["callbacks"]
    assert written["init_args"].pop("function").endswith("<lambda>")
    assert written["init_args"] == {"api_key": "***", "table": "Tensor of (1000, 7)", "rows": "list of 999"}
    assert text.startswith("# The record of a run from Python")
    assert "very-secret" not in text
    assert len(text) < 5000
    rules = [f"trainer.callbacks.Loaded.{name}" for name in ("hidden", "table", "rows", "function")]
    assert found.config["not_recorded"] == ["model.client.size", *rules]


class Odd(FederatedCallback):
    """Its argument cannot be looked at."""

    def __init__(self, each: Any) -> None:
        self.each = each


class Shy:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"do not ask for {name}")


def test_numbers_of_numpy_and_members_of_enums_are_written_as_values() -> None:
    written = Writer().describe(Odd([np.float64(0.5), np.int64(2), Colour.RED, {"b", "a"}, Path("x")]), "")
    assert yaml.safe_load(yaml.safe_dump(written))["init_args"] == {"each": [0.5, 2, "red", ["a", "b"], "x"]}


def test_a_run_goes_on_without_a_record_of_what_cannot_be_looked_at() -> None:
    with pytest.warns(UserWarning, match="no config.yaml is written, so reports compare no seeds: RuntimeError"):
        found = fit(Odd(Shy()))
    assert not (found.folder / "config.yaml").exists()
    assert found.metrics.index.tolist() == [1]


def test_without_a_run_folder_no_config_is_written() -> None:
    """Other loggers may write to the working directory, where a config.yaml may be the user's own."""
    Path("config.yaml").write_text("mine: 1\n")
    made = Trainer(max_epochs=1, accelerator="cpu", logger=False, callbacks=run_callbacks(), default_root_dir=".")
    made.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    assert Path("environment.yaml").exists()
    assert Path("config.yaml").read_text() == "mine: 1\n"


def test_a_module_tells_its_hyper_parameters() -> None:
    class Tuned(Quadratic):
        def __init__(self, dropout: float = 0.5, network: Any = None) -> None:
            super().__init__()
            self.save_hyperparameters(ignore="network")

    client = fit(client=Tuned(0.25)).config["model"]["client"]
    assert client["class_path"].endswith("Tuned")
    assert client["init_args"]["dropout"] == 0.25


def test_a_run_that_is_left_out_says_that_its_record_may_lack_a_difference() -> None:
    for _ in range(2):
        fit(seed=1)
    _, (note,) = make_methods(read_runs([Path("runs")]))
    assert note.endswith("has the same settings and seed, as far as its config.yaml records them.")


def test_settings_that_change_on_resuming_are_recorded() -> None:
    first = fit(FedProx(0.1))
    again = fit(
        FedProx(0.2), ConflictMonitor(), version="version_0", rounds=2, ckpt_path=first.folder / "checkpoints/last.ckpt"
    )
    assert again.config["trainer"]["callbacks"][0]["init_args"] == {"mu": 0.2}
    (resumed,) = again.environment["resumed"]
    assert resumed["round"] == 2
    assert resumed["changed"] == {"trainer.callbacks": ["FedProx(mu=0.1)", "FedProx(mu=0.2)"]}


def test_a_run_of_the_command_line_that_goes_on_from_python_keeps_its_config() -> None:
    Path("tiny.yaml").write_text(TINY)
    assert run("fit", "--config", "tiny.yaml").status == 0
    folder = Path("runs/tiny/version_0")
    before = (folder / "config.yaml").read_text()
    made = trainer(
        *run_callbacks(progress=False),
        logger=RunFolder("runs", "tiny", "version_0"),
        rounds=3,
        enable_checkpointing=True,
    )
    orchestrator = FederatedOrchestrator(ImageClassifier(TwoNN(in_features=64)))
    made.fit(orchestrator, datamodule=Digits(num_clients=4), ckpt_path=folder / "checkpoints/last.ckpt")
    assert (folder / "config.yaml").read_text() == before


def test_the_command_line_takes_the_model_of_the_run_and_refuses_to_repeat_it() -> None:
    network = {"network": TwoNN(in_features=64)}
    fit(client=ImageClassifier(**network), data=Digits(num_clients=4))
    folder = "runs/mine/version_0"
    assert refused("fit", "--config", f"{folder}/config.yaml") == (
        f"{folder}/config.yaml records a run from Python, and no config can repeat it: run its script again"
    )
    Path("tiny.yaml").write_text(TINY)
    assert refused("fit", "--config", "tiny.yaml", "--ckpt_path", f"{folder}/checkpoints/last.ckpt") == (
        f"ckpt_path: {folder} is a run from Python: go on there, by trainer.fit(…, ckpt_path=…), or begin a new run "
        f"with its model, by --model.init_from {folder}"
    )
    assert run("fit", "--config", "tiny.yaml", "--model.init_from", folder, "--trainer.max_epochs", 1).status == 0
    assert run("export", folder, "--out", "model.ckpt").status == 0
    assert isinstance(ImageClassifier.load_from_checkpoint("model.ckpt", **network), ImageClassifier)
    assert refused("export", folder, "--out", "model.pt2").endswith(
        "is in no run folder with a config.yaml of the command line to make the module from: from Python, "
        "fl_lightning.export(checkpoint, out, module=MyModule(…))"
    )
    fl_lightning.export(folder, "model.pt2", ImageClassifier(**network), torch.rand(2, 1, 8, 8))


@pytest.mark.parametrize(("own", "asked"), [([], {}), ([RichModelSummary()], {}), ([], {"enable_model_summary": True})])
def test_a_fit_is_quiet_unless_asked_to_tell(
    own: list[Any], asked: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked for the table of the module, it prints the table; nothing of Lightning's is logged, nor warned about."""
    logged, handler = list[str](), logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    chatterer = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    with restored() as warned:
        chatterer.addHandler(handler)
        callbacks = run_callbacks(own, summary="enable_model_summary" in asked)
        made = Trainer(max_epochs=1, accelerator="cpu", logger=RunFolder("runs", "mine"), callbacks=callbacks, **asked)
        made.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
        chatterer.removeHandler(handler)
    out = capsys.readouterr().out
    assert ("Trainable params" in out) == bool(own or asked)
    assert own or asked or [line.split()[0] for line in out.splitlines()] == ["training", "round", "run"]
    assert not logged
    assert not warned
