"""The wheel: what is in it, and that it works beside a user's own models/ and callbacks/, far from the repository."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from lib.command import rows

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("callbacks", "configs", "datamodules", "models")
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
MY_RULE = """
from models import SHARE

import fl_lightning
from fl_lightning import FederatedCallback

print("imported from", fl_lightning.__file__)


class MyRule(FederatedCallback):
    def aggregate(self, orchestrator, cohort):
        orchestrator.log_round("mine/share", SHARE)
        return cohort.replace(weights=SHARE * cohort.weights)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git knows, or would add: links stay links."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if os.path.lexists(REPOSITORY / name):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, source / name, follow_symlinks=False)
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(built), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = built.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed into an empty folder."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)], check=True)
    return folder


def test_nothing_generic_is_in_the_wheel(wheel: Path) -> None:
    """Only fl_lightning, every file of the four folders in it as a plain file, once."""
    entries = zipfile.ZipFile(wheel).infolist()
    names = [entry.filename for entry in entries]
    assert {name.split("/")[0] for name in names} == {"fl_lightning", re.sub(r"-py3.*", ".dist-info", wheel.name)}
    assert len(set(names)) == len(names)
    assert not [entry.filename for entry in entries if (entry.external_attr >> 16) & 0o170000 == 0o120000], "links"
    listed = (Path(path) for path, *_ in os.walk(REPOSITORY / "fl_lightning"))  # follows no links
    files = [file for folder in listed for file in folder.iterdir() if file.is_file() and file.suffix != ".pyc"]
    expected = {file.relative_to(REPOSITORY).as_posix() for file in files}
    assert {"fl_lightning/callbacks/server/gh.py", "fl_lightning/configs/digits_gh.yaml"} <= expected
    assert expected <= set(names)


def test_the_wheel_says_who_may_use_it(wheel: Path) -> None:
    """Apache-2.0, with the licence's text, whose it is, where to ask, and which version."""
    archive = zipfile.ZipFile(wheel)
    (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    assert archive.read(f"{folder}/licenses/LICENSE") == (REPOSITORY / "LICENSE").read_bytes()
    metadata = archive.read(f"{folder}/METADATA").decode()
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Author: fl-lightning contributors\n" in metadata
    assert re.search(r"^Project-URL: Issues, https://", metadata, re.MULTILINE)
    assert f"Version: {VERSION}\n" in metadata
    assert "Classifier: Typing :: Typed\n" in metadata


def installed(site: Path, folder: Path, *args: str) -> str:
    """What the installed command prints in a folder with a user's own models/, callbacks/ and rule."""
    for name, content in (("models", "SHARE = 0.5\n"), ("callbacks", "raise ImportError('not for fl_lightning')\n")):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(content)
    (folder / "my_rule.py").write_text(MY_RULE)
    command = [sys.executable, "-P", str(site / "bin" / "fl-lightning"), "fit", *args]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_installed_command_finds_its_configs_beside_a_users_own_packages(site: Path, tmp_path: Path) -> None:
    assert not [path for path in site.rglob("*") if path.is_symlink()]
    assert "\ndigits_gh.yaml  " in installed(site, tmp_path, "--config.help")


@pytest.mark.slow
def test_installed_command_runs_beside_a_users_own_packages(site: Path, tmp_path: Path) -> None:
    """The user's models/ and callbacks/ are theirs, and a rule of theirs that imports them is named in one word."""
    settings = ("--config", "digits_gh.yaml", "--trainer.max_epochs", "1", "--trainer.callbacks+=my_rule.MyRule")
    assert f"imported from {site / 'fl_lightning' / '__init__.py'}\n" in installed(site, tmp_path, *settings)
    (row,) = rows(tmp_path / "runs" / "digits_gh" / "version_0" / "metrics.csv")
    assert row["mine/share"] == 0.5
    assert 0 < row["val/top1"] < 1


def test_a_clone_without_links_is_whole(tmp_path: Path) -> None:
    """As on Windows, where git writes text files in place of the links at the top."""
    source, clone = tmp_path / "source", tmp_path / "clone"
    for name in ("fl_lightning", *FOLDERS):
        if (REPOSITORY / name).is_symlink():
            (source / name).symlink_to((REPOSITORY / name).readlink())
        else:
            shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-C", str(source)]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *command], check=True)
    subprocess.run(["git", "clone", "--quiet", "--config", "core.symlinks=false", str(source), str(clone)], check=True)
    assert (clone / "callbacks").read_text() == "fl_lightning/callbacks"
    names = ", ".join(f"fl_lightning.{name} as {name}" for name in FOLDERS)
    imported = [sys.executable, "-c", f"import {names}; print(configs.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(imported, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{clone / 'fl_lightning' / 'configs' / '__init__.py'}\n"


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_refuse_to_be_imported_under_their_bare_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from the repository's root, or under pytest: every class would exist twice."""
    monkeypatch.syspath_prepend(REPOSITORY)
    message = rf"import .*fl_lightning\.{name}, not (as )?{name}: under two names every class would exist twice"
    with pytest.raises(ImportError, match=message):
        importlib.import_module(name)
    assert importlib.import_module(f"fl_lightning.{name}").__name__ == f"fl_lightning.{name}"
