"""The command line before its command: nothing slow is imported in silence."""

import io
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from command import TINY, fit
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

import fl_lightning
from fl_lightning import cli
from fl_lightning.fit.command import FederatedCLI
from fl_lightning.fit.messages import reported


class Terminal(io.StringIO):
    """A text that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_command_line_is_there_before_torch_is() -> None:
    """Importing torch and Lightning takes seconds; the word about it comes first."""
    code = "import sys, fl_lightning.cli; print({'torch', 'lightning', 'rich', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_versions_are_told_before_anything_is_imported() -> None:
    """Of the package and of what a report of a mistake needs, as their metadata say; in a fresh process."""
    code = (
        "import sys, fl_lightning\n"
        "from fl_lightning.cli import main\n"
        "status = main(['--version'])\n"
        "print(fl_lightning.__version__, status, {'torch', 'lightning', 'jsonargparse', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours, torch, lightning = map(version, ("fl-lightning", "torch", "lightning"))
    told, after = done.stdout.splitlines()
    assert told == f"fl-lightning {ours}, torch {torch}, lightning {lightning}, Python {platform.python_version()}"
    assert after == f"{ours} 0 set()"
    assert done.stderr == ""


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries look for versions by ``getattr(module, "__version__", None)``: no other error may come."""
    monkeypatch.setattr("importlib.metadata.version", missing)
    assert getattr(fl_lightning, "__version__", None) is None


def missing(name: str) -> str:
    raise PackageNotFoundError(name)


QUICK = {  # command lines that are answered at once: exit status, and words of the answer
    "": (0, "fl-lightning COMMAND --help"),
    "--help": (0, "fl-lightning COMMAND --help"),
    "fitt": (2, "there is no command fitt: the commands are fit, validate, "),
    "reproduse --list": (2, "did you mean reproduce?"),
    "fit --config cifar10_ghh": (2, "such as cifar10_gh.yaml, cifar100_gh.yaml, cifar10_fedmgc.yaml: there is no cif"),
    "test --config=CIFAR10_ghh.yaml": (2, "a shipped config, such as cifar10_gh.yaml, "),
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
    "export --help": (0, "usage: fl-lightning export"),
    "export nowhere": (2, "give --out: fl-lightning export --help lists the options"),
}


@pytest.mark.parametrize("line", QUICK)
def test_help_and_mistakes_are_answered_before_torch_is_imported(line: str) -> None:
    slow = {"torch", "lightning", "pandas", "rich", "wandb"}
    code = f"import atexit, sys; atexit.register(lambda: print({slow} & set(sys.modules)))"
    code += "; from fl_lightning.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True)
    status, words = QUICK[line]
    assert done.returncode == status
    assert words in (done.stderr if status else done.stdout)
    assert done.stdout.endswith("set()\n")


def test_a_report_needs_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run with rules and monitors of all kinds, whose folder holds arrays; in a fresh process."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    names = ("FedNova", "ConflictMonitor", "CoherenceMonitor", "ClientMonitor", "LossSurface")
    fit("--trainer.callbacks", f"[{', '.join(f'{{class_path: {name}}}' for name in names)}]")
    code = "import atexit, sys; atexit.register(lambda: print({'torch', 'lightning'} & set(sys.modules)))"
    code += "; from fl_lightning.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "report", "runs"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("set()\n")
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


def test_nobody_else_sees_it(capfd: pytest.CaptureFixture[str]) -> None:
    cli._import("errors")
    assert capfd.readouterr() == ("", "")


def test_every_public_name_is_there() -> None:
    for name in fl_lightning.__all__:
        assert getattr(fl_lightning, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'fl_lightning' has no attribute 'nope'"):
        _ = fl_lightning.nope  # type: ignore[attr-defined]  # on purpose


def test_importing_the_package_imports_no_other_package_of_weight() -> None:
    """Not the package alone; and its public names import torch and Lightning, but nothing that few runs need; pandas is
    imported by the names for finished runs alone.
    """
    slow = "'torch', 'lightning', 'timm', 'wandb', 'pandas', 'matplotlib', 'plotly', 'datasets'"
    code = f"""
import sys, fl_lightning
print({{{slow}}} & set(sys.modules))
for name in {{*fl_lightning.__all__}} - {{*fl_lightning.REPORT}}: getattr(fl_lightning, name)
print('torch' in sys.modules, {{{slow}}} & set(sys.modules) - {{'torch', 'lightning', 'matplotlib'}})
"""  # torchmetrics, which Lightning imports, imports matplotlib
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\nTrue set()\n"


def test_what_few_runs_need_is_imported_when_it_is_used() -> None:
    """Late imports draw no random numbers: a network is the same whether timm was there before the seed was set."""
    code = """
import random, sys
import numpy, torch
import fl_lightning.fit.command
print({"timm", "wandb", "pandas", "mlflow", "datasets"} & set(sys.modules))
states = lambda: (random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist())
before = states()
import timm.layers.norm_act, timm.models.resnet
print(states() == before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\nTrue\n"


@pytest.mark.parametrize(("error", "status"), [(SIGTERMException(), 143), (MisconfigurationException("no"), 2)])
def test_errors_of_lightning_are_known_without_importing_it(error: BaseException, status: int) -> None:
    """By the names of their classes."""

    def leave(args: Sequence[str]) -> int:
        raise error

    assert reported(leave, []) == status


def test_other_exits_go_on() -> None:
    with pytest.raises(SystemExit):
        reported(lambda args: sys.exit(3), [])
