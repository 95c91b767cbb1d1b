"""Where published data sets are looked for if no folder is named."""

from pathlib import Path

import pytest
from lib.image_files import write_folder

from fl_lightning.datamodules import CIFAR10
from fl_lightning.fit.read_config import config_of, data_of
from fl_lightning.runs.config.settings import settings_fingerprint


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default data folder; the working directory is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "cache" / "fl_lightning" / "data"


@pytest.mark.filterwarnings("ignore:.*may be half unpacked")
def test_by_default_in_the_user_s_cache(cache: Path) -> None:
    assert CIFAR10().absolute_root() == cache
    write_folder(cache / "cifar-10", 10)
    assert CIFAR10().load(train=True)[1].tolist() == [label for label in range(10) for _ in range(2)]


def test_data_in_the_working_directory_comes_first(cache: Path) -> None:
    """If it holds this data set, in its own files or as an image folder."""
    write_folder(cache / "cifar-10", 10)
    Path("data", "MNIST", "raw").mkdir(parents=True)
    Path("data", "MNIST", "raw", "train-images-idx3-ubyte").touch()
    Path("data", "cifar-10-batches-py").mkdir()  # empty
    assert CIFAR10().absolute_root() == cache
    Path("data", "cifar-10-batches-py", "test_batch").touch()
    assert CIFAR10().absolute_root() == Path("data").absolute()
    Path("data", "cifar-10-batches-py", "test_batch").unlink()
    write_folder(Path("data", "CIFAR10"), 10)
    assert CIFAR10().absolute_root() == Path("data").absolute()


def test_the_variable_comes_before_all(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it names a folder without the data set, that folder is the place of a download alone."""
    monkeypatch.setenv("FL_LIGHTNING_DATA", str(tmp_path / "sets"))
    write_folder(cache / "cifar-10", 10)
    assert CIFAR10().absolute_root() == tmp_path / "sets"
    write_folder(Path("data", "CIFAR10"), 10)
    assert CIFAR10().absolute_root() == Path("data").absolute()
    write_folder(tmp_path / "sets" / "CIFAR10", 10)
    assert CIFAR10().absolute_root() == tmp_path / "sets"
    monkeypatch.setenv("FL_LIGHTNING_DATA", "~/sets")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CIFAR10().absolute_root() == tmp_path / "sets"


def test_a_root_that_is_named_is_the_only_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FL_LIGHTNING_DATA", "sets")
    write_folder(Path("sets", "CIFAR10"), 10)
    assert CIFAR10(root="other").absolute_root() == Path("other").absolute()
    assert CIFAR10(root="other").missing() is not None


def test_the_place_is_no_setting(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config keeps no folder, and one that names a folder has the same fingerprint."""
    monkeypatch.setenv("FL_LIGHTNING_DATA", "sets")
    config = config_of(["--config=cifar10_gh.yaml"])
    assert config["data"]["init_args"]["root"] is None
    before = config_of(["--config=cifar10_gh.yaml", "--data.root=data", "--data.download=false"])
    assert before["data"]["init_args"]["root"] == "data"
    assert settings_fingerprint(config) == settings_fingerprint(before) == "ca14283bdf1b130b"


def test_a_config_tells_whether_its_data_are_missing(cache: Path) -> None:
    config = config_of(["--config=cifar10_gh.yaml"])
    assert f"expected CIFAR10 in {cache / 'cifar-10-batches-py'} (batches.meta, " in str(data_of(config).missing())
    write_folder(Path("data", "CIFAR10"), 10)
    assert data_of(config).missing() is None


def test_making_data_leaves_their_config_as_it_is() -> None:
    """Augmentations are a list, which the parser would change in place."""
    config = config_of(["--config=papers/fedgh-paper/fig-2.yaml"])
    before = repr(config["data"])
    data_of(config)
    assert repr(config["data"]) == before
