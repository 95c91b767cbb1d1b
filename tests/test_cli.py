"""The command line before its command: nothing slow is imported in silence."""

import io
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

import fl_lightning
from fl_lightning import cli


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
