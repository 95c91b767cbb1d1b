"""No command reads or writes through a link that leaves a run folder, hangs at a FIFO, or drowns in aliases.

Every file and folder of a real run takes its turn in the slow tests, some in the others. The interpreter reports
whatever a command does outside of the run folder.
"""

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest
from lib.command import TINY, fit, run

import fl_lightning
from fl_lightning import ConfigurationError
from fl_lightning.files import whole
from fl_lightning.inside import inside, within

SCAFFOLD = ("--trainer.callbacks+=Scaffold", "--trainer.callbacks+=SaveCohorts", "--model.client_states", "disk")
MONITOR = ("--trainer.callbacks+=ConflictMonitor", "--trainer.callbacks.every", "1")
TRAINED = ("--config", "tiny.yaml", *SCAFFOLD, *MONITOR)
FOLDER = Path("runs/tiny/version_0")
LAST = FOLDER / "checkpoints" / "last.ckpt"
HANGS_S = 60  # seconds after which a command hangs
PAIRS = zip("abcdefgh", "bcdefghi", strict=True)  # 9 values, 9 times those, and so on: 9⁹ in all
BOMB = "\n".join(["a: &a [x,x,x,x,x,x,x,x,x]", *(f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]" for old, new in PAIRS)])

# What each command opens of a run folder; where a link leads to something else, it is refused.
COMMANDS: dict[str, tuple[tuple[object, ...], str]] = {
    "report": (
        ("report", FOLDER),
        "config.yaml environment.yaml metrics.csv better.yaml timings.csv report.html arrays arrays/partition.npz "
        "arrays/cosines_1.npz arrays/cosines_3.npz",
    ),
    "export": (
        ("export", FOLDER, "--out", "out.ckpt", "--overwrite"),
        "config.yaml sites.json checkpoints checkpoints/best.ckpt checkpoints/last.ckpt",
    ),
    "test": (
        ("test", *TRAINED, "--ckpt_path", LAST),
        "config.yaml checkpoints checkpoints/last.ckpt lock metrics.csv better.yaml",
    ),
    "fit": (
        ("fit", *TRAINED, "--trainer.max_epochs", 3, "--ckpt_path", "last"),
        "config.yaml checkpoints checkpoints/last.ckpt lock metrics.csv better.yaml environment.yaml timings.csv "
        "arrays arrays/partition.npz arrays/cosines_3.npz states states/Scaffold states/Scaffold/id states/Scaffold/c "
        "states/Scaffold/c/0.1.safetensors",
    ),
}
NOT_YET = (
    "sites.json lock report.html arrays/cosines_3.npz config.yaml.part metrics.csv.part checkpoints/last.ckpt.part"
)


def link_to(name: str) -> Callable[[Path, Path], None]:
    return lambda path, outside: path.symlink_to(outside / name)


ATTACKS: dict[str, Callable[[Path, Path], Any]] = {
    "link to a file": link_to("file"),
    "link to a folder": link_to("folder"),
    "link to what is not there": link_to("nothing"),
    "FIFO": lambda path, outside: os.mkfifo(path),
    "alias bomb": lambda path, outside: path.write_text(BOMB),
}
# What the interpreter may be asked to do: to change a name in a folder follows no link, to open what is there does.
NAMES = ("os.remove", "os.rename", "os.symlink", "os.mkdir", "os.rmdir")
CONTENTS = ("open", "os.listdir", "os.scandir", "os.truncate", "os.chmod", "os.utime", "os.link", "shutil.rmtree")
_watched: str | None = None
_touched: list[tuple[str, str]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is None or event not in (*NAMES, *CONTENTS):
        return
    for path in (os.fsdecode(each) for each in arguments if isinstance(each, str | bytes | os.PathLike)):
        real = os.path.realpath(path) if event in CONTENTS else os.path.realpath(Path(path).parent)
        if real.startswith(_watched):
            _touched.append((event, path))


sys.addaudithook(_watch)


@contextmanager
def untouched(outside: Path) -> Iterator[None]:
    """Fail if a folder is touched inside the ``with`` block, or if the block hangs."""
    global _watched

    def hangs(number: int, frame: object) -> None:
        raise AssertionError("hangs")

    before, earlier = state(outside), signal.signal(signal.SIGALRM, hangs)
    _touched.clear()
    signal.alarm(HANGS_S)
    _watched = os.path.realpath(outside)
    try:
        yield
    finally:
        _watched = None
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)
    assert not _touched
    assert state(outside) == before


def state(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """The times and contents of all that a folder holds."""
    paths = [folder, *folder.rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}


def attacked(made: Path, folder: Path, place: str, attack: str) -> Path:
    """Put an attack in the place of a file or a folder of a run, which then lies outside; return the place outside."""
    for name in ("run", "outside"):
        shutil.rmtree(name, ignore_errors=True)
    shutil.copytree(made, "run")
    outside, path = Path("outside"), Path("run") / folder / place
    outside.mkdir()
    if path.exists():
        shutil.move(path, outside / ("folder" if path.is_dir() else "file"))
    (outside / "file").touch()
    (outside / "folder").mkdir(exist_ok=True)
    ATTACKS[attack](path, outside.absolute())
    return outside.absolute()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a run of two rounds: arrays, client states, cohorts."""
    folder = tmp_path_factory.mktemp("made")
    with chdir(folder):
        Path("tiny.yaml").write_text(TINY)
        fit(*TRAINED[2:])
    return folder


def places(folder: Path) -> list[str]:
    """The files and folders of a run folder, one of each kind in a folder, and those that a command makes later."""
    found = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    kinds = {(path.parent, re.sub(r"\d.*|best|last", "", path.stem), path.suffix): path for path in reversed(found)}
    return [*sorted(map(str, kinds.values())), "checkpoints/last.ckpt", *NOT_YET.split()]


QUICK = [
    ("report", "link to a file", "metrics.csv timings.csv arrays/cosines_1.npz"),
    ("report", "link to what is not there", "report.html"),
    ("report", "FIFO", "environment.yaml"),
    ("report", "alias bomb", "config.yaml"),
    ("export", "link to a folder", "checkpoints"),
    ("test", "link to what is not there", "lock"),
    ("fit", "link to a file", "states/Scaffold/c/0.1.safetensors"),
    ("fit", "link to what is not there", "arrays/cosines_3.npz"),
]


@pytest.mark.parametrize(
    ("command", "attack", "chosen"),
    [*QUICK, *(pytest.param(each, attack, "", marks=pytest.mark.slow) for each in COMMANDS for attack in ATTACKS)],
)
def test_nothing_outside_is_touched_and_nothing_hangs(
    made: Path, command: str, attack: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command reads nothing in place of a file, or goes on without, or refuses in one line, which links are to be."""
    arguments, opened = COMMANDS[command]
    monkeypatch.chdir(tmp_path)
    refused, tried = set(), chosen.split() or places(made / FOLDER)
    for place in tried:
        outside = attacked(made, FOLDER, place, attack)
        with chdir("run"), untouched(outside):
            done = run(*arguments)
        if done.status:
            assert re.fullmatch(r"fl-lightning: error: [^\n]+\n", done.err), (place, done.err)
            refused.add(place)
    if attack.startswith("link"):
        assert refused == set(opened.split()) & set(tried)


OF_A_JOB = "finished.json log.txt lock run/version_0/metrics.csv run/version_0/checkpoints/last.ckpt"


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_sweep_goes_on_with_no_file_from_outside(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is trained by a process of its own; one that fails leaves its line in the log."""
    monkeypatch.chdir(tmp_path)
    Path("made").mkdir()
    sweep = ("sweep", "--config", "tiny.yaml", "--seeds", 1)
    with chdir("made"):
        Path("tiny.yaml").write_text(TINY)
        assert run(*sweep).status == 0
        (job,) = Path("runs/sweep/runs").glob("*/seed_1")
        (job / "finished.json").rename("finished.json")
    status = {}
    for place in OF_A_JOB.split():
        outside = attacked(Path("made").absolute(), job, place, attack)
        shutil.copy("made/finished.json", outside / "folder")
        if place == "finished.json":
            shutil.copy("made/finished.json", outside / "file")
        with chdir("run"), untouched(outside):
            done = run(*sweep)
        assert "Traceback" not in done.out + done.err
        status[place] = done.status
    if attack.startswith("link"):
        assert 0 not in status.values()


def test_links_that_stay_inside_and_links_to_the_run_folder_work(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and folders of the run lie elsewhere in the run folder, which lies on another disk."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, "run")
    Path("run/runs").rename("disk")
    Path("run/runs").symlink_to(Path("disk").absolute())
    with chdir("run"):
        for place in ("arrays", "states/Scaffold/c", "metrics.csv", "config.yaml", "checkpoints/last.ckpt"):
            (FOLDER / place).rename(moved := (FOLDER / f"moved-{place.replace('/', '-')}").absolute())
            (FOLDER / place).symlink_to(moved)
        for arguments, _ in COMMANDS.values():
            done = run(*arguments)
            assert done.status == 0, done.err


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack != "alias bomb"])
def test_a_path_inside_of_a_folder_is_a_file_of_the_folder(attack: str, tmp_path: Path) -> None:
    """A link to the folder itself may lead to it; a folder below is reached by ``within``."""
    folder, outside = tmp_path / "run", tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").touch()
    (folder / "arrays").mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    ATTACKS[attack](folder / "attacked", outside)
    with pytest.raises(ConfigurationError, match=r"attacked is (reached by a link that leads out of|a folder, a FIFO)"):
        inside(folder, "attacked")
    assert inside(tmp_path / "link", "arrays", "new.npz") == tmp_path / "link/arrays/new.npz"
    assert within(folder, "arrays") == folder / "arrays"
    with pytest.raises(ConfigurationError, match=r"expected a file, but .*arrays is a folder"):
        inside(folder, "arrays")


def test_what_is_written_whole_follows_no_link_of_an_earlier_process(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "file.part").symlink_to(tmp_path / "mine")
    with whole(tmp_path / "file") as part:
        part.write_text("new")
    assert [(tmp_path / name).read_text() for name in ("mine", "file")] == ["mine", "new"]


def test_every_path_in_a_run_folder_is_made_by_inside_and_all_yaml_is_read_by_one_reader() -> None:
    """Or else the next reader of a file would follow its links again."""
    names = "METRICS|TIMINGS|CONFIG|ENVIRONMENT|CHECKPOINTS|ARRAYS|LOCK|FOLDER|FINISHED|LOG"
    joined = re.compile(rf"/ \(?(?:{names})\b|yaml\.(?:safe_load|load|compose)\(")
    package = Path(fl_lightning.__file__).parent
    found = [path.name for path in package.rglob("*.py") if joined.search(path.read_text())]
    assert found == ["yaml_text.py"]  # the reader
