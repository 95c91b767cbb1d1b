"""What server and sites compare: all settings but those that are places by their class, and the source of classes."""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from fl_lightning.engine.sites.facts import check_alike
from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.command import FederatedCLI
from fl_lightning.fit.configs import resolve_configs
from fl_lightning.network.alike import compared, sources_of

MINE = """
from fl_lightning import FederatedCallback, FederatedDataModule
from fl_lightning.callbacks import ConflictMonitor

from my_base import Base


class Mine(Base):
    pass


class Looks(ConflictMonitor):
    pass


class Hospital(FederatedDataModule):
    places = ("dsn",)
    num_clients = 1

    def __init__(self, dsn: str = "", ward: str = "", **settings):
        super().__init__()
"""
BASE = "from fl_lightning import FederatedCallback\n\n\nclass Base(FederatedCallback):\n    pass\n"


class Told(FederatedCLI):
    """Reads a command line, and trains nothing."""

    @override
    def without_folder(self, callbacks: Any) -> dict[str, Any]:
        return {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}

    @override
    def run(self, command: Callable[[], None]) -> None:
        self.told = compared(self.written_config)


def told(*options: str) -> dict[str, Any]:
    return Told(resolve_configs(["fit", *options])).told


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a table, a folder that is called as one of its columns, and modules that can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "my_base"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for file in ("a.csv", "b.csv"):
        Path(file).write_text("client,age,ill\na,1,0\na,2,1\nb,3,0\nb,4,1\n")
    Path("age").mkdir()
    Path("mine.py").write_text(MINE)
    Path("my_base.py").write_text(BASE)
    return tmp_path


def refused(here: dict[str, Any], other: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        check_alike(here, other, "site anna")
    return str(refusal.value)


def table(file: str, *options: str) -> dict[str, Any]:
    settings = f"{{class_path: Table, init_args: {{train: {file}, target: ill}}}}"
    client = "--model.client=lightning.pytorch.demos.boring_classes.BoringModel"
    return told(client, f"--data={settings}", *options)


def test_places_may_differ_and_all_else_must_not(there: Path) -> None:
    """A target that a file or folder has for its name is a target; a place is one, whether it is there or not."""
    here = table("a.csv")
    assert here["data"] == "fl_lightning.datamodules.tables.table.Table"
    assert here["data.target"] == "ill"
    check_alike(here, table("b.csv", "--data.test=a.csv"), "site anna")
    other = table("b.csv", "--data.target=age")
    assert "data.target (ill here, age there)" in refused(here, other)
    assert "data.target (age here, ill there)" in refused(other, here)


def test_a_setting_that_only_one_side_has_is_refused(there: Path) -> None:
    here = table("a.csv")
    assert "data.features (null here, ['age'] there)" in refused(here, table("a.csv", "--data.features=[age]"))


def test_a_data_module_of_a_users_names_its_own_places(there: Path) -> None:
    def hospital(dsn: str, ward: str) -> dict[str, Any]:
        arguments = {"dsn": dsn, "ward": ward}
        return compared({"data": {"class_path": "mine.Hospital", "init_args": arguments}})

    here = hospital("pg:anna", "east")
    check_alike(here, hospital("pg:berlin", "east"), "site anna")
    assert "data.ward (east here, west there)" in refused(here, hospital("pg:anna", "west"))


def test_the_places_of_a_class_within_the_data_are_places_too() -> None:
    def data(path: str, seed: int) -> dict[str, Any]:
        sampler = {"class_path": "fl_lightning.FixedSchedule", "init_args": {"path": path}}
        partition = {"class_path": "fl_lightning.datamodules.Dirichlet", "init_args": {"alpha": seed}}
        arguments = {"sampler": sampler, "partition": partition}
        return compared({"data": {"class_path": "fl_lightning.datamodules.Digits", "init_args": arguments}})

    check_alike(data("a.txt", 1), data("b.txt", 1), "site anna")
    assert "data.partition.alpha (1 here, 2 there)" in refused(data("a.txt", 1), data("a.txt", 2))


def test_the_source_of_classes_of_others_is_compared(there: Path) -> None:
    """The hash is over the class's file and those of the classes from which it inherits, whatever their line ends."""
    files = [Path(name).read_bytes() for name in ("mine.py", "my_base.py")]
    expected = hashlib.blake2b(b"".join(files), digest_size=8).hexdigest()
    here = table("a.csv", "--trainer.callbacks+=mine.Mine", "--trainer.callbacks+=mine.Looks")
    sources = {name: value for name, value in here.items() if name.startswith("source of ")}
    assert sources == {"source of mine.Mine": expected}  # a monitor may come and go
    Path("mine.py").write_bytes(files[0].replace(b"\n", b"\r\n"))
    assert sources_of(["mine.Mine"]) == sources
    Path("my_base.py").write_bytes(files[1] + b"# another\n")
    changed = sources_of(["mine.Mine"])
    message = refused(here, here | changed)
    assert f"source of mine.Mine ({expected} here, {changed['source of mine.Mine']} there): train from" in message


def test_classes_of_the_package_and_of_no_file_have_no_source() -> None:
    assert sources_of(["fl_lightning.callbacks.Scaffold", "torch.optim.SGD", "builtins.dict", "no.such.thing"]) == {}
