"""Every command answers a hostile line in one line: a part of ``make attack``, and lines that were tracebacks once."""

import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml
from attack.fuzz_commands import RUN, SOUND, command_lines
from attack.fuzz_fit import fit_lines
from attack.fuzz_line import FINE, Line, attempt, stage
from lib.command import refused, run

FEW = 1  # lines of each command


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config, a run and files that no command can use; copy it."""
    stage(folder := tmp_path_factory.mktemp("staged") / "work")
    return folder


@pytest.fixture
def work(staged: Path, tmp_path: Path) -> Path:
    """A copy of the folder."""
    return Path(shutil.copytree(staged, tmp_path / "work", symlinks=True))


def test_generated_lines_of_all_commands(staged: Path) -> None:
    """The same lines each time; a line of each of the commands is accepted or refused, and both happen."""
    lines = [*fit_lines(FEW, 1), *command_lines(FEW * len(SOUND), 1, staged)]
    results = [attempt(line, staged) for line in lines]
    assert {result["command"] for result in results} == {"fit", *SOUND}
    assert [result for result in results if result["end"] not in FINE] == []
    assert {result["end"] for result in results} == set(FINE)


def test_the_attack_notices(staged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, a hang, and a refusal in two lines are not fine."""

    def crash(*args: object) -> None:
        raise TypeError("a mistake of ours")

    def hang(*args: object) -> None:
        while True:
            pass

    line = Line(("report", RUN))
    with monkeypatch.context() as patch:
        patch.setattr("attack.fuzz_line.run", crash)
        assert attempt(line, staged)["end"] == "traceback"
        patch.setattr("attack.fuzz_line.run", hang)
        patch.setattr("attack.fuzz_line.LIMIT", 1)
        assert attempt(line, staged)["end"] == "hang"
    assert attempt(Line(("--version",), shell="; echo one two >&2; exit 2"), staged)["end"] == "1 lines"


LINES = {  # lines that once ended in a traceback, and what they say now
    "fit --config .": ": there is no ., and fl-lightning fit --config.help lists",
    "data --config /": ": there is no /, and fl-lightning fit --config.help lists",
    "data --config=": ": there is no '', and fl-lightning fit --config.help lists",
    "test --config=tiny.yaml --ckpt_path=": "ckpt_path: there is no file .; expected a path to a .ckpt, or 'last'",
    "sweep --config=tiny.yaml --grid=data.batch_size=*a": "--grid data.batch_size=*a is not YAML: ",
    "sweep --config=tiny.yaml --grid=data.batch_size=1,*a": "--grid data.batch_size=1,*a: *a is not YAML: ",
    "sweep --config=tiny.yaml --grid=data.batch_size=!!python/name:os.system": "could not determine a constructor",
    "sweep --config=tiny.yaml --grid=data.batch_size=\x01": r"--grid data.batch_size=\x01 is not YAML: ",
    "sweep --config=tiny.yaml --grid=data.batch_size=2020-13-45": "month must be in 1..12",
    "sweep --config=tiny.yaml --seeds=²": "--seeds: expected a whole number of at least 1, got ²: give",
    "sweep --config=tiny.yaml --trainer.max_epochs=null": "trainer.max_epochs must be a whole number, got None",
    "sweep --config=tiny.yaml --trainer.max_epochs=-1": "trainer.max_epochs must be at least 1, got -1",
    "validate --config=tiny.yaml --trainer.accelerator=bomb.yaml": "aliases (*name) stand for more than 100,000 values",
    "report \x1b[31m": r": \x1b[31m does not exist",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_was_a_traceback(line: str, work: Path) -> None:
    with chdir(work):
        assert LINES[line] in refused(*line.split(" "))


@pytest.mark.parametrize("threads", ["x", "0", "2.5", "2,2", "²", "9" * 5000])
def test_number_of_threads_in_the_environment(threads: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    with chdir(work):
        assert refused("data", "--config=tiny.yaml").startswith(
            "OMP_NUM_THREADS: expected a whole number of at least 1"
        )


def test_an_empty_number_of_threads_is_none(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    with chdir(work):
        assert run("data", "--config=tiny.yaml").status == 0


Change = Callable[[dict[str, Any]], object]
CLIENT = "expected model.client of the run's config.yaml to have a class_path"
REPORTED: list[tuple[str, Change, str]] = [  # file, change, and what report says
    ("config", lambda all: all.update(seed_everything=[1]), "expected a whole number in seed_everything, got [1]"),
    ("config", lambda all: all["trainer"].update(max_epochs="abc"), "expected a whole number in trainer.max_epochs"),
    ("config", lambda all: all.update(data=5), "expected names and values in data, got 5"),
    ("environment", lambda all: all.update(rules=0.5), "expected a list in rules, got 0.5"),
]
EXPORTED: list[tuple[str, Change, str]] = [  # suffix of the file, change of config.yaml, and what export says
    (".ckpt", lambda all: all.pop("model"), CLIENT),
    (".ckpt", lambda all: all.update(model=[1]), "expected names and values in model, got [1]"),
    (".ckpt", lambda all: all["model"].pop("client"), CLIENT),
    (".ckpt", lambda all: all["model"].update(client=5), "expected names and values in model.client, got 5"),
    (".ckpt", lambda all: all["model"]["client"].pop("class_path"), CLIENT),
    (".ckpt", lambda all: all["model"]["client"].update(init_args=[1]), CLIENT),
    (".pt", lambda all: all["model"].update(init_from=5), "expected a text in model.init_from, got 5"),
    (".pt2", lambda all: all.update(seed_everything="x"), "expected a whole number in seed_everything, got 'x'"),
    (".pt2", lambda all: all.pop("data"), "expected data of the run's config.yaml to have a class_path"),
    (".pt2", lambda all: all["data"]["init_args"].update(num_clients={"class_path": "x"}), "Digits cannot be made"),
    (".pt2", lambda all: all["model"]["client"]["init_args"].update(network=5), "ImageClassifier cannot be made"),
]


def changed(file: Path, change: Change) -> None:
    change(content := yaml.safe_load(file.read_text()))
    file.write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(("file", "change", "words"), REPORTED)
def test_a_report_of_a_damaged_run(file: str, change: Change, words: str, work: Path) -> None:
    with chdir(work):
        changed(Path(RUN, f"{file}.yaml"), change)
        assert f"{file}.yaml is damaged: {words}" in refused("report", "runs")


@pytest.mark.parametrize(("suffix", "change", "words"), EXPORTED)
def test_an_export_of_a_damaged_run(suffix: str, change: Change, words: str, work: Path) -> None:
    with chdir(work):
        changed(Path(RUN, "config.yaml"), change)
        assert words in refused("export", RUN, "--out", f"model{suffix}")
        assert not Path(f"model{suffix}").exists()


STREAMS = [  # of processes of their own
    (Line(("--version",), shell=">&-"), 0),
    (Line(("--version",), shell=">/dev/full"), 2),
    (Line(("--help",), shell=">/dev/full"), 2),
    (Line(("reproduce", "list"), shell="| true; exit ${PIPESTATUS[0]}"), 141),  # true ends long before the first line
    (Line(("--version",), gone=True), 0),
    (Line(("fit", "--config=digits_gh.yaml"), gone=True), 2),
    (Line(("\udcff",), shell=";"), 2),
    (Line(("data", "--config=tiny.yaml"), environment={"OMP_NUM_THREADS": "x"}, shell=";"), 2),
    (Line(("--help",), environment={"PYTHONIOENCODING": "ascii"}, shell=";"), 0),
]


@pytest.mark.parametrize(("line", "status"), STREAMS, ids=lambda each: str(each).encode("ascii", "replace").decode())
def test_streams_and_a_deleted_folder(line: Line, status: int, staged: Path) -> None:
    result = attempt(line, staged)
    assert (result["end"], result["status"]) == ("refused" if status else "accepted", status), result["said"]
