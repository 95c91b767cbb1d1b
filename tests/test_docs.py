"""Every code block and command of the documentation runs, page by page, in an empty folder, from top to bottom.

A Python block whose first line is ``# name.py`` is written to that file, and so is a YAML block with ``# name.yaml``.
Other Python blocks of a page run one after another in one namespace; other YAML blocks are read as parts of a config
beside the digits'. Commands train two rounds on made-up images. Output (``text``) is not compared. A block that cannot
run stands below a comment that says why: ``<!-- not run: it needs an account -->``.
"""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lib.command import HANG, process, restored, run
from lib.generated import write_images

from fl_lightning import datamodules

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n+)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S
)
FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml|csv))\n")
SHOWN = {"", "text", "latex"}  # languages of what is looked at alone
PLACES = {"DIR": "images", "SEED": "1", "RATIO": "0.5"}  # what stands for a value in commands
ROUNDS = 2


@dataclass
class Page:
    """A page that runs in the working directory.

    Attributes:
        names: what its Python blocks have defined so far.
    """

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def show(self, language: str, text: str) -> None:
        """Run one block."""
        if language in ("python", "yaml") and (name := FILE.match(text)):
            Path(name[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(name[1]).write_text(text)
        elif language == "python":
            exec(compile(text, "<block>", "exec"), self.names)
        elif language == "yaml":
            self.config(text)
        elif language == "bash":
            for command in commands(text):
                self.command(command)
        else:
            assert language in SHOWN, f"no way to run {language}"

    def config(self, text: str) -> None:
        """Read a part of a config, beside the digits'."""
        Path("part.yaml").write_text(text)
        result = run("fit", "--config", "digits_gh.yaml", "--config", "part.yaml", "--print_config")
        assert result.status == 0, result.err

    def command(self, words: list[str]) -> None:
        """Run one command."""
        program, *args = words
        if program == "fl-lightning":
            if re.search(r"--trainer\.devices [2-9]", shlex.join(args)):  # the other ranks start this process's command
                done = process(*shortened(args))
                assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
            else:
                result = run(*shortened(args))
                assert result.status == 0, f"{shlex.join(words)}: {result.err or result.out}"
        elif program == "pip":
            extras = {
                extra for word in args for group in re.findall(r"\[([\w,-]+)\]", word) for extra in group.split(",")
            }
            assert extras <= project()["optional-dependencies"].keys()
        elif program == "make":
            assert re.search(rf"^{args[0]}:", (REPOSITORY / "Makefile").read_text(), re.M)
        elif program == "python" and args[0] == "-m" and args[1].startswith("benchmarks"):
            path = REPOSITORY.joinpath(*args[1].split("."))  # tests/test_benchmarks.py runs them
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), words
        elif program == "python" and args[0].startswith("examples/"):
            assert (REPOSITORY / args[0]).is_file()  # tests/test_examples.py runs them
        else:
            assert program in ("python", "pytest", "torchrun", "cat", "ls", "head"), f"no way to run {program}"
            path = Path(sys.executable).with_name(program) if program in ("python", "pytest", "torchrun") else program
            done = subprocess.run([str(path), *args], capture_output=True, text=True, timeout=HANG, check=False)
            assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"


def commands(text: str) -> Iterator[list[str]]:
    """Split a block into commands without comments; a line that ends in a backslash goes on."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in line.split(" && "):
            if words := shlex.split(part, comments=True):
                yield [re.sub(r"\b(DIR|SEED|RATIO)\b", lambda place: PLACES[place[0]], word) for word in words]


def shortened(args: list[str]) -> list[str]:
    """Let a command train a few rounds, whatever its config says."""
    if args[0] == "fit" and not any("help" in word or "print_config" in word for word in args):
        return [*args, "--trainer.max_epochs", str(ROUNDS), "--trainer.accelerator", "cpu"]
    if args[0] == "reproduce" and "--list" not in args:
        return [*args, "--dry-run"]
    if args[0] == "sweep":
        return [*args, "--seeds", "1", "--trainer.max_epochs", "1"]
    return args


def project() -> dict[str, Any]:
    return dict(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"])


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data sets of made-up images under one root: some 1,000 images to train on and 200 to test on, in folders."""
    folder = tmp_path_factory.mktemp("images")
    for data in (datamodules.MNIST, datamodules.FashionMNIST, datamodules.CIFAR10, datamodules.CIFAR100):
        write_images(folder / data.__name__, data, 1000 // data.num_classes, 200 // data.num_classes)
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_page_runs(path: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FL_LIGHTNING_DATA", str(images))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("images").symlink_to(images)
    monkeypatch.syspath_prepend(tmp_path)  # as an interpreter in this folder finds the page's own files
    page = Page()
    with restored():
        for block in BLOCK.finditer(path.read_text()):
            if not block["why"]:
                page.show(block["language"], block["text"])


def test_every_fence_is_seen() -> None:
    """As many blocks as pairs of fences: a block inside a list would else be left out unseen."""
    for path in PAGES:
        text = path.read_text()
        assert 2 * len(BLOCK.findall(text)) == len(re.findall("^ *```", text, re.M)), path
