"""The command line before its command: nothing slow is imported in silence."""

import io
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from lib.command import TINY, fit
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

import fl_lightning
from fl_lightning import cli
from fl_lightning.fit.command import FederatedCLI
from fl_lightning.fit.messages import run_and_report


class Terminal(io.StringIO):
    """A text that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def said(code: str, *args: str) -> str:
    """What Python code prints in a process of its own."""
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True).stdout


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries look for versions by ``getattr(module, "__version__", None)``: no other error may come."""
    monkeypatch.setattr("importlib.metadata.version", missing)
    assert getattr(fl_lightning, "__version__", None) is None


def missing(name: str) -> str:
    raise PackageNotFoundError(name)


ANSWERS = """
import contextlib, io, json, sys
from fl_lightning.cli import main
for line in sys.argv[1:]:
    streams = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            status = main(line.split())
        except SystemExit as leaving:
            status = leaving.code or 0
    slow = sorted({"torch", "lightning", "pandas", "rich", "wandb"} & set(sys.modules))
    print(json.dumps([status, streams[bool(status)].getvalue(), streams[not status].getvalue(), slow]))
"""
VERSIONS = [f"{name} {version(name)}" for name in ("fl-lightning", "torch", "lightning")]
QUICK = {  # command lines that are answered at once: exit status, and words of the answer
    "--version": (0, f"{', '.join(VERSIONS)}, Python {platform.python_version()}\n"),
    "": (0, "fl-lightning COMMAND --help"),
    "--help": (0, "fl-lightning COMMAND --help"),
    "fitt": (2, "there is no command fitt: the commands are fit, validate, "),
    "reproduse --list": (2, "did you mean reproduce?"),
    "fit --config cifar10_ghh": (2, "such as cifar10_gh.yaml, cifar100_gh.yaml, cifar10_fedmgc.yaml: there is no cif"),
    "test --config=CIFAR10_ghh.yaml": (2, "a shipped config, such as cifar10_gh.yaml, "),
    "fit --config digits_gh.yaml --rounds 3": (2, "--rounds; the number of rounds is --trainer.max_epochs 3"),
    "fit --help": (0, "usage: fl-lightning fit --config FILE [--OPTION VALUE …]"),
    "data -h": (0, "--plot"),
    "fit --config digits_gh.yaml --trainer.callbacks+=Scafold": (
        2,
        "callbacks: there is no class Scafold; did you",
    ),
    "test --config digits_gh.yaml --data Digitz": (2, "data: there is no class Digitz; did you mean Digits?"),
    "sweep --config digits_gh.yaml --data.partition=Dirichlett": (2, "data.partition: there is no class Dirichlett;"),
    "fit digits_gh.yaml": (2, "expected an option, got digits_gh.yaml: a config is --config digits_gh.yaml"),
    "sweep --config digits_gh.yaml --model.local_epoch=2": (2, "did you mean --model.local_epochs?"),
    "sweep --config nowhere.yaml": (2, "there is no nowhere.yaml, and fl-lightning fit --config.help lists what"),
    "reproduce": (2, "reproduce needs the id of an experiment"),
    "reproduce --help": (0, "usage: fl-lightning reproduce"),
    "reproduce --list": (0, "fedgh-slides/table-2           10 cells "),
    "reproduce list": (0, "fedlaw/fig-1 "),
    "reproduce fedgh-slides/table-22": (2, "did you mean fedgh-slides/table-2?"),
    "reproduce fedgh/table-2": (2, "did you mean fedgh-slides/table-2 or fedgh-paper/table-2?"),
    "reproduce fedgh": (2, "did you mean fedgh-paper or fedgh-slides?"),
    "reproduce table-10": (2, "did you mean fedlaw/table-10?"),
    "reproduce fedlaw --seeds 0": (2, "expected a whole number of at least 1, got 0"),
    "reproduce fedlaw --most-seeds 0": (2, "expected a whole number of at least 1, got 0"),
    "reproduce fedlaw --seed 3": (2, "there is no option --seed; did you mean --seeds?"),
    "reproduce fedlaw --seed_everything=3": (2, "--seeds and --first_seed choose the seeds"),
    "reproduce fedlaw --dat.root DIR": (2, "there is no option --dat.root; did you mean --data.root?"),
    "reproduce fedlaw --trainer.default_root_dir DIR": (2, "--out names the folder of all results"),
    "sweep --config digits_gh.yaml --batch_size 3": (2, ": the size of a client's batches is --data.batch_size"),
    "sweep --config digits_gh.yaml --zzz 3": (2, "those of fit begin with trainer., model. or data."),
    "sweep --config digits_gh.yaml more": (2, "expected an option, got more"),
    "report --help": (0, "usage: fl-lightning report"),
    "report nowhere": (2, "or a folder of such folders: nowhere does not exist"),
    "report": (2, "give RUN: fl-lightning report --help lists the options"),
    "fit --config.help": (0, "digits_gh.yaml                       Gradient harmonization (FedGH) on scikit-learn's"),
    "dashboard --help": (0, "usage: fl-lightning dashboard"),
    "keys --help": (0, "usage: fl-lightning keys"),
    "keys --renew anna --out nowhere": (2, "expected a kit's file nowhere/authority/issued.txt"),
    "export --help": (0, "usage: fl-lightning export"),
    "export nowhere": (2, "give one of --out, --adapter, --merge: fl-lightning export --help lists the options"),
}


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Any]]:
    """Of each line: exit status, the answer, the other stream, and the slow modules that were imported for it."""
    return dict(zip(QUICK, map(json.loads, said(ANSWERS, *QUICK).splitlines()), strict=True))


@pytest.mark.parametrize("line", QUICK)
def test_help_and_mistakes_are_answered_before_torch_is_imported(line: str, answers: dict[str, list[Any]]) -> None:
    """Importing torch and Lightning takes seconds."""
    status, answer, other, slow = answers[line]
    assert (status, other, slow) == (QUICK[line][0], "", [])
    assert QUICK[line][1] in answer


def test_a_report_needs_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run with rules and monitors of all kinds, whose folder holds arrays; in a fresh process."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    names = ("FedNova", "ConflictMonitor", "CoherenceMonitor", "ClientMonitor", "LossSurface")
    callbacks = f"[{', '.join(f'{{class_path: {name}}}' for name in names)}]"
    fit("--trainer.max_epochs", 1, "--trainer.callbacks", callbacks, "--trainer.callbacks.points", 3)
    status, _, other, slow = json.loads(said(ANSWERS, "report runs"))
    assert (status, other, {"torch", "lightning"} & {*slow}) == (0, "", set())
    assert "Client coherence" in Path("runs/tiny/version_0/report.html").read_text()


def test_help_names_every_command_with_what_it_does() -> None:
    """Those of one run are the ones that the parser takes."""
    lines = cli.overview().splitlines()
    for name, command in cli.COMMANDS.items():
        assert f"  {name:11}{command.about}" in lines
    assert max(map(len, lines)) <= 80
    assert set(cli.TOPICS["One run"]) == set(FederatedCLI.subcommands())


def test_a_terminal_shows_what_takes_long_and_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line on standard error, overwritten by blanks at the end."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli._import("errors").ConfigurationError is fl_lightning.ConfigurationError
    words = "importing PyTorch and Lightning …"
    assert terminal.getvalue() == f"{words}\r{' ' * len(words)}\r"
    terminal.truncate(0)
    cli._import("errors", cli.COMMANDS["report"].imports)
    assert terminal.getvalue().lstrip("\0").startswith("importing pandas and Plotly …\r")


def test_nobody_else_sees_it(capfd: pytest.CaptureFixture[str]) -> None:
    cli._import("errors")
    assert capfd.readouterr() == ("", "")


def test_every_public_name_is_there_and_described() -> None:
    assert fl_lightning.__version__ == version("fl-lightning")
    for room in ("", ".callbacks", ".datamodules", ".models"):
        package = import_module(f"fl_lightning{room}")
        assert not [name for name in package.__all__ if not (getattr(package, name).__doc__ or "").strip()]
    for name in {*fl_lightning.__all__} - {"Buffers"}:  # a type in other words, which has no name of its own
        assert getattr(fl_lightning, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'fl_lightning' has no attribute 'nope'"):
        _ = fl_lightning.nope  # type: ignore[attr-defined]  # on purpose


IMPORTS = """
import sys
import fl_lightning
slow = {"torch", "lightning", "timm", "wandb", "pandas", "matplotlib", "plotly", "datasets", "mlflow"}
imported = lambda: print(sorted(slow & set(sys.modules)))
imported()
for name, module in fl_lightning.HOMES.items():
    if module != "fl_lightning.report.python":
        getattr(fl_lightning, name)
imported()
import fl_lightning.fit.command
imported()
"""
DRAWS = """
import random
import numpy, torch
import fl_lightning.fit.command
states = lambda: (random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist())
before = states()
import timm.layers.norm_act, timm.models.resnet
print(states() == before)
"""


def test_what_few_runs_need_is_imported_when_it_is_used() -> None:
    """The package alone imports nothing; its public names torch and Lightning, which imports matplotlib.

    The names for finished runs are left out: they import pandas.
    """
    training = "['lightning', 'matplotlib', 'torch']"
    assert said(IMPORTS).splitlines() == ["[]", training, training]


@pytest.mark.slow
def test_late_imports_draw_no_random_numbers() -> None:
    """A network is the same whether timm was there before the seed was set."""
    assert said(DRAWS) == "True\n"


@pytest.mark.parametrize(("error", "status"), [(SIGTERMException(), 143), (MisconfigurationException("no"), 2)])
def test_errors_of_lightning_are_known_without_importing_it(error: BaseException, status: int) -> None:
    """By the names of their classes."""

    def leave(args: Sequence[str]) -> int:
        raise error

    assert run_and_report(leave, []) == status


def test_other_exits_go_on() -> None:
    with pytest.raises(SystemExit):
        run_and_report(lambda args: sys.exit(3), [])
