"""Many runs as one command: the same numbers as one by one, nothing twice, nothing lost to a kill."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from command import HANG, TINY, fit, process, rows, run
from wandb_files import wandb_records

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import Cell
from fl_lightning.fit.reading import config_of
from fl_lightning.reproduce.arguments import arguments
from fl_lightning.reproduce.cells import refined, with_options
from fl_lightning.reproduce.jobs import Folders, Job, plan
from fl_lightning.reproduce.papers import experiments
from fl_lightning.runs.settings import settings_fingerprint

SWEEP = ["sweep", "--config", "tiny.yaml", "--grid", "data.partition.alpha=0.1,10.0", "--seeds", "2", "--rounds", "2"]
# While the file ``hold`` is there, runs with seed 2 wait in round 3: the second job of the sweep is then under
# way for as long as a test wants. Lightning stops a run at the end of a batch, so the wait ends when it is asked to.
HOLD = """
import time
from pathlib import Path
from fl_lightning import FederatedCallback

class Hold(FederatedCallback):
    def on_client_start(self, orchestrator, run):
        waits = run.round == 3 and orchestrator.seed == 2
        while waits and Path("hold").exists() and not orchestrator.trainer.received_sigterm:
            time.sleep(0.01)
"""
LONG = ["sweep", "--config", "tiny.yaml", "--grid", "data.partition.alpha=0.1", "--seeds", "2", "--rounds", "5"]
LONG += ["--trainer.callbacks+=hold.Hold"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; it holds tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    return tmp_path


def results(out: str = "runs/sweep") -> pd.DataFrame:
    return pd.read_csv(Path(out, "tiny", "results.csv"))


def test_a_sweep_gives_what_single_runs_give() -> None:
    """Two values, two seeds: four rows, each the last round of the run that ``fit`` makes of the same options.

    The comparison of the values ends the command, and is written beside a report of the four runs.
    """
    ended = run(*SWEEP, "--jobs", 2)
    assert ended.status == 0
    said = (
        "No verdict: 2 seeds are too few, at least 3 are needed. Differences to alpha 0.1 in mean validation accuracy"
    )
    assert said in " ".join(ended.out.split())
    written = {name: Path("runs/sweep/tiny", name).read_text() for name in ("comparison.md", "report.html")}
    assert all(said in text.replace("\N{NO-BREAK SPACE}", " ") for text in written.values())
    assert list(pd.read_csv("runs/sweep/tiny/comparison.csv")["method"]) == ["alpha 0.1", "alpha 10"]
    assert Path("runs/sweep/tiny/comparison.tex").read_text().count("alpha 10") == 1
    table = results()
    assert list(table["data.partition.alpha"]) == [0.1, 0.1, 10.0, 10.0]
    assert list(table["seed"]) == [1, 2, 1, 2]
    for _, row in table.iterrows():
        options = ["--data.partition.alpha", row["data.partition.alpha"], "--seed_everything", row["seed"]]
        fit(*options, "--trainer.max_epochs", 2, "--experiment", f"{row['data.partition.alpha']}-{row['seed']}")
        alone = rows(f"runs/{row['data.partition.alpha']}-{row['seed']}/version_0/metrics.csv")
        assert rows(Path(row["folder"], "run", "version_0", "metrics.csv")) == alone
        assert row["val/top1"] == pytest.approx(alone[-1]["val/top1"], abs=1e-9)
    assert "± " in Path("runs/sweep/tiny/table.md").read_text()


def test_finished_runs_are_not_run_again() -> None:
    """Nor for another sweep that has some of the same settings: only the new seed is trained."""
    assert run(*SWEEP).status == 0
    before = {path: path.stat().st_mtime_ns for path in Path("runs/sweep/runs").rglob("finished.json")}
    assert len(before) == 4
    assert run(*SWEEP[:-3], 3, "--rounds", 2, "--subset", "data.partition.alpha=0.1").status == 0
    after = {path: path.stat().st_mtime_ns for path in Path("runs/sweep/runs").rglob("finished.json")}
    assert len(after) == 5
    assert {path: after[path] for path in before} == before
    assert len(results()) == 3


@contextlib.contextmanager
def under_way() -> Iterator[subprocess.Popen[str]]:
    """The sweep LONG as a process whose first job is finished and whose second is in its third round."""
    Path("hold.py").write_text(HOLD)
    Path("hold").touch()
    command = [str(Path(sys.executable).with_name("fl-lightning")), *LONG]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    deadline, runs = time.monotonic() + HANG, Path("runs/sweep/runs")
    while not any(len(rows(file)) == 2 for file in runs.rglob("metrics.csv") if file.parents[2].name == "seed_2"):
        assert started.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = psutil.Process(started.pid).children(recursive=True)
    yield started
    _, alive = psutil.wait_procs(children, timeout=HANG)
    assert not alive, "a run's process outlived the command"
    Path("hold").unlink()


@pytest.mark.slow
def test_killed_in_mid_run_it_goes_on_to_the_same_numbers() -> None:
    """What was finished stays as it was, to the byte; the run under way goes on from its last round."""
    with under_way() as command:
        command.kill()
        command.wait()
    (finished,) = Path("runs/sweep/runs").rglob("finished.json")
    untouched = finished.read_bytes()
    again = process(*LONG)
    assert again.returncode == 0, again.stderr
    assert finished.read_bytes() == untouched
    log = finished.parents[1] / "seed_2" / "log.txt"
    assert "Restored all states from the checkpoint" in log.read_text(), "it did not begin anew"
    assert run(*LONG, "--out", "elsewhere").status == 0
    measured = ["data.partition.alpha", "seed", "val/top1"]
    assert results()[measured].equals(results("elsewhere")[measured])
    for folder in Path("elsewhere/runs").glob("*/seed_*"):
        same = Path("runs/sweep/runs", folder.parent.name, folder.name)
        metrics = Path("run", "version_0", "metrics.csv")
        assert (folder / metrics).read_bytes() == (same / metrics).read_bytes()


def test_a_run_that_fails_does_not_stop_the_others() -> None:
    """Eleven classes each cannot be had of ten: that cell is missing from the table, and the status says so."""
    grid = "data.partition=[{class_path: ClassesPerClient, init_args: {classes: 11}}, {class_path: IID}]"
    result = run("sweep", "--config", "tiny.yaml", "--grid", grid, "--seeds", 1, "--rounds", 1)
    assert result.status == 1
    assert "failed: tiny ClassesPerClient(classes=11) seed 1" in result.out
    assert "expected classes <= 10" in result.out
    assert len(results()) == 1
    assert "1 of 2 runs finished" in Path("runs/sweep/tiny/table.md").read_text()


def test_a_run_stopped_before_its_first_round_starts_anew() -> None:
    """A folder without a checkpoint that can be read is no obstacle."""
    (planned,) = plan(["tiny"], ["--config=tiny.yaml"], [1], Folders(Path("runs/runs")), "tiny")
    assert run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--out", "runs").status == 0
    metrics = planned.run.folder / "metrics.csv"
    expected = metrics.read_bytes()
    (planned.folder / "finished.json").unlink()
    checkpoint = planned.run.folder / "checkpoints" / "last.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    assert run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--out", "runs").status == 0
    assert planned.finished
    assert metrics.read_bytes() == expected


def test_settings_that_make_no_difference_share_a_run() -> None:
    """Where and how it runs is no part of what is run; everything else is."""

    def key(*options: str) -> str:
        return settings_fingerprint(config_of(["--config=tiny.yaml", *options]))

    same = ["--seed_everything=7", "--experiment=other", "--trainer.logger=WandbLogger", "--trainer.devices=2"]
    assert {key(option) for option in same} == {key()}
    others = [
        "--data.batch_size=16",
        "--model.local_epochs=2",
        "--trainer.max_epochs=3",
        "--trainer.callbacks+=FedNova",
    ]
    assert len({key(), *map(key, others)}) == 5


def test_finished_json_says_how_it_was_made() -> None:
    assert run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--out", "runs").status == 0
    (path,) = Path("runs/runs").rglob("finished.json")
    facts = json.loads(path.read_text())
    assert facts["seed"] == 1
    assert facts["seconds"] > 0
    assert {"torch", "lightning", "fl-lightning"} == set(facts["versions"])
    assert "--config=tiny.yaml" in facts["arguments"]


def test_wandb_groups_by_cell_and_tags_by_label() -> None:
    """Real offline runs, read back: one in each run's folder."""
    arguments = ["--grid", "data.batch_size=16,32", "--seeds", 1, "--rounds", 1, "--trainer.logger", "WandbLogger"]
    assert run("sweep", "--config", "tiny.yaml", *arguments).status == 0
    found = {}
    for file in Path("runs/sweep/runs").glob("*/seed_1/wandb/offline-run-*/run-*.wandb"):
        (record,) = (each.run for each in wandb_records(file) if each.WhichOneof("record_type") == "run")
        found[record.run_group] = (record.display_name, set(record.tags), record.run_id)
        assert record.run_id == f"{file.parents[3].name[-16:]}-1"
    assert {group: kept[:2] for group, kept in found.items()} == {
        f"tiny {size}": (f"tiny {size} seed 1", {"tiny", str(size), "seed 1"}) for size in (16, 32)
    }


def test_a_run_is_read_anew_until_it_is_finished(tmp_path: Path) -> None:
    """A stopped run may not have been evaluated yet: what was read of it then must not be what the table shows."""
    job = Job(("name",), (), 1, 2, tmp_path)
    (folder := tmp_path / "run" / "version_0").mkdir(parents=True)
    (folder / "metrics.csv").write_text("round,train/loss\n1,0.5\n")
    assert job.run.names == ["train/loss"]
    (folder / "metrics.csv").write_text("round,val/top1,train/loss\n1,,0.5\n2,0.9,0.4\n")
    (tmp_path / "finished.json").write_text("{}")
    assert job.run.names == ["val/top1", "train/loss"]
    assert job.run is job.run


def test_rounds_done_of_a_run_that_has_not_begun() -> None:
    assert Job(("name",), (), 1, 3, Path("nowhere")).rounds_done == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce"], "reproduce needs the id of an experiment"),
        (["reproduce", "fedgh-slides/table-22"], "did you mean fedgh-slides/table-2"),
        (["reproduce", "fedgh-slides/table-2", "--seeds", "0"], "expected a whole number of at least 1, got 0"),
        (["reproduce", "fedgh-slide"], "did you mean fedgh-slides?"),
        (["reproduce", "fedgh-slides/table-2", "--subset", "beta=1"], "the axes are alpha, method"),
        (["reproduce", "fedgh-slides/table-2", "--subset", "alpha=3"], "alpha has the labels 0.01, 0.1, "),
        (["reproduce", "fedgh-slides/table-2", "--data.partition.alpha", "3"], "would override data.partition.alpha"),
        (["reproduce", "fedgh-slides/table-2", "--data.partition=IID"], "would override data.partition.alpha"),
        (["reproduce", "fedgh-slides/table-2", "--trainer.callbacks", "FedNova"], "would override trainer.callbacks"),
        (["reproduce", "fedgh-slides/table-4", "--trainer.callbacks=[]"], "would override trainer.callbacks"),
        (["sweep", *SWEEP[1:], "--grid", "trainer.max_epochs=1,2"], "--trainer.max_epochs would override"),
        (["reproduce", "fedgh-slides/table-2", "--subset", "alpha=3", "--subset", "method=FedAvg"], "got alpha=3"),
        (["reproduce", "fedgh-slides/table-2", "--data.nope", "3"], "there is no option nope"),
        (["sweep", "--config", "tiny.yaml", "--grid", "data.batch_size"], "--grid must be OPTION=VALUE"),
        (["sweep", "--config", "tiny.yaml", "--grid", "data.batch_size=-1"], "batch_size"),
        (["sweep"], "give --config"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.status == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not Path("runs").exists()


def test_a_grid_acts_after_the_options_of_all_runs() -> None:
    """So a rule given for all runs can be swept; two rows of labels that are true."""
    options = ["--trainer.callbacks", "ConflictMonitor", "--trainer.callbacks+=FedProx", "--model.local_epochs=2"]
    cells = with_options([Cell({}, ())], options)
    cells = refined(cells, ["trainer.callbacks.mu=0.1,0.2"])
    found = [config_of(["--config=tiny.yaml", *cell.options])["trainer"]["callbacks"] for cell in cells]
    assert [rules[-1]["init_args"]["mu"] for rules in found] == [0.1, 0.2]
    assert [len(rules) for rules in found] == [2, 2]


def test_options_that_change_results_are_named_and_earlier_results_kept() -> None:
    """Results with the runs of earlier ones replace them; results of other runs move them aside."""
    command = ["sweep", "--config", "tiny.yaml", "--rounds", 1, "--seeds"]
    assert run(*command, 1).status == 0
    more = run(*command, 2)
    assert "settings in place of the config's: trainer.max_epochs 1\n" in more.out
    assert not Path("runs/sweep/tiny/earlier-1").exists()
    other = run(*command, 1, "--model.local_epochs", 2, "--num_threads=1")
    assert "settings in place of the config's: trainer.max_epochs 1, model.local_epochs 2\n" in other.out
    assert "earlier results, with other runs: runs/sweep/tiny/earlier-1\n" in other.out
    earlier = pd.read_csv("runs/sweep/tiny/earlier-1/results.csv")
    assert list(earlier["seed"]) == [1, 2]
    assert Path("runs/sweep/tiny/earlier-1/table.md").is_file()
    assert list(results()["seed"]) == [1]


def test_list_names_every_experiment() -> None:
    result = run("reproduce", "--list")
    assert result.status == 0
    assert set(experiments()) <= {line.split()[0] for line in result.out.splitlines()}


def test_help_leads_to_the_commands() -> None:
    help_page = run("--help")
    assert help_page.status == 0
    assert all(word in help_page.out for word in ("fit", "data", "reproduce", "sweep", "COMMAND --help"))
    assert "--subset" in run("reproduce", "--help").out


def test_settings_of_a_mistake_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no option nope"):
        config_of(["--config=tiny.yaml", "--data.nope=3"])


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupted_it_tabulates_what_is_there(sent: signal.Signals) -> None:
    """Ctrl-C or a cluster's signal in mid-run: the table of what is finished, how to go on, status 128 + signal."""
    with under_way() as command:
        command.send_signal(sent)
        out, _ = command.communicate(timeout=HANG)
    assert command.returncode == 128 + sent
    assert "the same command continues the runs" in out
    assert len(results()) == 1


def test_options_of_fit_may_come_first() -> None:
    """The value of an option that is passed on is no experiment's id."""
    options, passed_on = arguments(
        ["reproduce", "--data.root", "DIR", "--rounds", "3", "fedlaw", "--trainer.devices=2"]
    )
    assert (options.id, options.rounds) == (["fedlaw"], 3)
    assert passed_on == ["--data.root", "DIR", "--trainer.devices=2"]


@pytest.mark.parametrize(("given", "expected"), [([], "base/name"), (["--experiment", "own"], "own")])
def test_results_are_named_by_the_experiment(given: list[str], expected: str) -> None:
    """Of the command line, else of the config or a file that it builds on."""
    Path("tiny.yaml").write_text(f"experiment: base/name\n{TINY}")
    Path("mine.yaml").write_text("base: tiny.yaml\n")
    result = run("sweep", "--config", "mine.yaml", "--seeds", 1, "--rounds", 1, *given)
    assert result.status == 0, result.err
    assert Path("runs/sweep", expected, "results.csv").is_file()
    assert result.out.startswith(f"planning {expected}: 1 cell")
    assert not Path("runs/sweep/mine").exists()


@pytest.mark.parametrize("name", ["../elsewhere", "runs", "runs/deeper"])
def test_names_of_experiments_stay_in_the_folder_of_results(name: str) -> None:
    result = run("sweep", "--config", "tiny.yaml", "--experiment", name)
    assert result.status == 2
    assert "experiment must" in result.err


def test_folders_have_names_to_read() -> None:
    """The experiment and the labels of all axes, by the axes' last words; then 16 digits that tell the cells apart."""
    grid = "trainer.callbacks=[[{class_path: FedProx, init_args: {mu: 0.1}}, {class_path: FedNova}], []]"
    arguments = ["--grid", grid, "--grid", "data.partition.alpha=0.1,.inf", "--experiment", "my/first study"]
    assert run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--rounds", 1, *arguments).status == 0
    found = sorted(folder.name for folder in Path("runs/sweep/runs").iterdir())
    assert all(re.fullmatch("[0-9a-f]{16}", name[-16:]) for name in found)
    assert [name[:-17] for name in found] == [
        "my-first-study-FedProx-mu=0.1+FedNova-IID",
        "my-first-study-FedProx-mu=0.1+FedNova-alpha-0.1",
        "my-first-study-IID",
        "my-first-study-alpha-0.1",
    ]


def test_names_of_folders_are_safe_and_short() -> None:
    name = Folders(Path("runs")).of(16 * "0", "../ε: *?|<>\0 " + 300 * "long ").name
    assert re.fullmatch(r"long[-long]{,75}-0{16}", name)


def test_a_cell_keeps_its_folder_whatever_it_is_called() -> None:
    """Of two tables that share a cell, the first names it; a folder that is there keeps its name."""
    one, other = 16 * "1", 16 * "2"
    planned = Folders(Path("runs"))
    first = planned.of(one, "table 1")
    assert planned.of(one, "table 2") == first == Path("runs", f"table-1-{one}")
    assert planned.of(other, "table 1") != first
    Path("runs", other).mkdir(parents=True)  # as earlier versions named it
    first.mkdir()
    later = Folders(Path("runs"))
    assert later.of(one, "table 2") == first
    assert later.of(other, "table 1") == Path("runs", other)


def test_finished_runs_of_earlier_versions_count() -> None:
    """Their folders are named by the fingerprint alone."""
    assert run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--rounds", 1).status == 0
    (folder,) = Path("runs/sweep/runs").iterdir()
    folder.rename(folder.with_name(folder.name[-16:]))
    again = run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--rounds", 1)
    assert "1 run, finished before" in again.out
    assert [each.name for each in Path("runs/sweep/runs").iterdir()] == [folder.name[-16:]]
