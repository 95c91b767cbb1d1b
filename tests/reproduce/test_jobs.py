"""Many runs as one command: the same numbers as one by one, nothing twice, nothing lost to a kill."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest
from lib.command import HANG, TINY, Result, fit, process, rows, run
from lib.job_folders import under_way as job_under_way
from lib.wandb_files import wandb_records

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce import jobs, workers
from fl_lightning.reproduce.jobs import Folders, Job, clear_run_without_round, plan, wandb_arguments
from fl_lightning.reproduce.run_options import read_minutes
from fl_lightning.runs.folder.checkpoints import last_of_run

SWEEP = ["sweep", "--config", "tiny.yaml", "--grid", "data.partition.alpha=0.1,10.0", "--seeds", "2", "--rounds", "2"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory holds tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


def results(out: str = "runs/sweep") -> pd.DataFrame:
    return pd.read_csv(Path(out, "tiny", "results.csv"))


def marks() -> dict[Path, int]:
    """When each finished run was marked as finished."""
    return {path: path.stat().st_mtime_ns for path in Path("runs/sweep/runs").rglob("finished.json")}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A folder with the sweep of two values and two seeds, and how the command ended."""
    folder = tmp_path_factory.mktemp("sweep")
    with contextlib.chdir(folder):
        Path("tiny.yaml").write_text(TINY)
        return folder, run(*SWEEP, "--jobs", 2)


@pytest.mark.slow
def test_shards_write_the_table_of_one_command(swept: tuple[Path, Result]) -> None:
    """Each trains two of four runs; the second one ends last."""
    first = run(*SWEEP, "--shard", "1/2")
    assert first.status == 0, first.err
    assert "shard 1 of 2: 2 of 4 runs are finished in all" in first.out
    assert not Path("runs/sweep/tiny/results.csv").exists()
    assert {path.parent.name for path in marks()} == {"seed_2"}
    second = run(*SWEEP, "--shard", "0/2")
    assert second.status == 0, second.err
    columns = [name for name in results() if name not in ("folder", "seconds")]
    whole = pd.read_csv(swept[0] / "runs/sweep/tiny/results.csv")
    pd.testing.assert_frame_equal(results()[columns], whole[columns])


NOTES = """
import os
from pathlib import Path
from fl_lightning import FederatedCallback

class Notes(FederatedCallback):
    def on_fit_end(self, trainer, pl_module):
        Path(trainer.default_root_dir, "gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
"""


@pytest.mark.parametrize(("devices", "expected"), [("auto", True), (1, True), (2, False), ("0,1", False), ([3], False)])
def test_a_run_that_names_its_devices_is_obeyed(devices: object, expected: bool) -> None:
    job = Job(("a job",), (), 1, 1, Path("runs"), {"trainer": {"devices": devices}})
    assert job.leaves_devices_open is expected


def test_a_job_that_goes_on_counts_what_earlier_processes_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of 40 s lie there; the process that ends the job takes less than a round."""
    job = job_under_way(tmp_path, seconds=40, top1=[0.5] * 3)
    monkeypatch.setattr(jobs, "clear_run_without_round", lambda job: None)
    monkeypatch.setattr(jobs, "command", lambda arguments: 0)
    monkeypatch.setattr(jobs.atexit, "_run_exitfuncs", lambda: None)  # would take operators of torch from later tests
    assert jobs._fit(job, []) == 0
    assert 120 <= job.facts["seconds"] < 160


@pytest.mark.slow
def test_runs_at_a_time_have_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs are pretended, for two runs at a time."""
    monkeypatch.setattr(workers, "visible_gpus", lambda: ["0", "1", "2", "3"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    Path("mine.py").write_text(NOTES)
    more = ["--trainer.callbacks+=mine.Notes", "--jobs", 2]
    result = run("sweep", "--config", "tiny.yaml", "--seeds", 2, "--rounds", 1, *more)
    assert result.status == 0, result.err
    assert "GPUs of the runs at a time: 0,2; 1,3" in result.out
    assert {path.read_text() for path in Path("runs").rglob("gpus")} == {"0,2", "1,3"}


class TestSweep:
    """One sweep serves all tests; the last one adds runs."""

    @pytest.fixture
    def ended(self, swept: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch) -> Result:
        monkeypatch.chdir(swept[0])
        return swept[1]

    def test_gives_what_single_runs_give(self, ended: Result) -> None:
        """A row for each run: the last round of the run that ``fit`` makes of the same options."""
        assert ended.status == 0
        table = results()
        assert list(table["data.partition.alpha"]) == [0.1, 0.1, 10.0, 10.0]
        assert list(table["seed"]) == [1, 2, 1, 2]
        row = table.iloc[3]
        fit("--data.partition.alpha", 10.0, "--seed_everything", 2, "--experiment", "alone")
        alone = rows("runs/alone/version_0/metrics.csv")
        assert rows(Path(row["folder"], "run", "version_0", "metrics.csv")) == alone
        assert row["val/top1"] == pytest.approx(alone[-1]["val/top1"], abs=1e-9)
        assert "± " in Path("runs/sweep/tiny/table.md").read_text()

    def test_ends_with_the_comparison_of_the_values(self, ended: Result) -> None:
        """On the screen, and beside a report of the four runs."""
        few = "No verdict: 2 seeds are too few, at least 3 are needed. Differences to alpha 0.1 in mean validation acc"
        assert few in " ".join(ended.out.split())
        written = [Path("runs/sweep/tiny", name).read_text() for name in ("comparison.md", "report.html")]
        assert all(few in text.replace("\N{NO-BREAK SPACE}", " ") for text in written)
        assert list(pd.read_csv("runs/sweep/tiny/comparison.csv")["method"]) == ["alpha 0.1", "alpha 10"]
        assert Path("runs/sweep/tiny/comparison.tex").read_text().count("alpha 10") == 1

    def test_folders_have_names_to_read_and_say_how_runs_were_made(self, ended: Result) -> None:
        folders = sorted(folder.name for folder in Path("runs/sweep/runs").iterdir())
        assert [name[:-17] for name in folders] == ["tiny-alpha-0.1", "tiny-alpha-10"]
        assert all(re.fullmatch("[0-9a-f]{16}", name[-16:]) for name in folders)
        facts = json.loads(next(iter(marks())).read_text())
        assert facts["seed"] in (1, 2)
        assert facts["seconds"] > 0
        assert {"torch", "lightning", "fl-lightning"} == set(facts["versions"])
        assert "--config=tiny.yaml" in facts["arguments"]

    def test_trains_nothing_twice_and_keeps_earlier_results(self, ended: Result) -> None:
        """A sweep with some of the same runs trains the new seed alone; results of other runs are moved aside.

        A folder that an earlier version named by the fingerprint alone counts, too.
        """
        old = next(folder for folder in Path("runs/sweep/runs").iterdir() if "alpha-0.1" in folder.name)
        old.rename(old.with_name(old.name[-16:]))
        before = marks()
        more = [*SWEEP[:-4], "--seeds", 3, "--rounds", 2, "--subset", "data.partition.alpha=0.1"]
        result = run(*more, "--num_threads=1")
        assert "settings in place of the config's: trainer.max_epochs 2\n" in result.out
        assert "earlier results, with other runs: runs/sweep/tiny/earlier-1\n" in result.out
        assert len(pd.read_csv("runs/sweep/tiny/earlier-1/results.csv")) == 4
        assert Path("runs/sweep/tiny/earlier-1/table.md").is_file()
        assert list(results()["seed"]) == [1, 2, 3]
        after = marks()
        assert len(after) == 5
        assert {path: after[path] for path in before} == before
        assert "3 runs, finished before" in run(*more).out
        assert not Path("runs/sweep/tiny/earlier-2").exists(), "the results have the runs of the earlier ones"


def test_runs_that_fail_or_were_cut_short() -> None:
    """Eleven classes each cannot be had of ten: that cell is missing, and the status says so; the other is trained.

    A folder without a checkpoint that can be read is no obstacle: the run starts anew, to the same numbers.
    """
    grid = "data.partition=[{class_path: ClassesPerClient, init_args: {classes: 11}}, {class_path: IID}]"
    sweep = ["sweep", "--config", "tiny.yaml", "--grid", grid, "--seeds", 1, "--rounds", 1]
    result = run(*sweep)
    assert result.status == 1
    assert "failed: tiny ClassesPerClient(classes=11) seed 1" in result.out
    assert "expected classes <= 10" in result.out
    assert "1 of 2 runs finished" in Path("runs/sweep/tiny/table.md").read_text()
    (row,) = results().to_dict("records")
    job = Job((), (), 1, 1, Path(row["folder"]))
    expected = (job.run.folder / "metrics.csv").read_bytes()
    (job.folder / "finished.json").unlink()
    checkpoint = job.run.folder / "checkpoints" / "last.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    assert run(*sweep, "--subset", "data.partition=IID").status == 0
    assert job.finished
    assert (job.run.folder / "metrics.csv").read_bytes() == expected


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


def wait_for_third_round(alive: Callable[[], bool]) -> None:
    """Wait until the first job of LONG is finished and the second is in its third round."""
    deadline, runs = time.monotonic() + HANG, Path("runs/sweep/runs").absolute()
    while not any(len(rows(file)) == 2 for file in runs.rglob("metrics.csv") if file.parents[2].name == "seed_2"):
        assert alive(), "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def _hold() -> None:
    Path("hold.py").write_text(HOLD)
    Path("hold").touch()


@contextlib.contextmanager
def under_way() -> Iterator[subprocess.Popen[str]]:
    """The sweep LONG as a process, in the second job's third round; no process of a run may outlive the block."""
    command = [str(Path(sys.executable).with_name("fl-lightning")), *LONG]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    wait_for_third_round(lambda: started.poll() is None)
    children = psutil.Process(started.pid).children(recursive=True)
    yield started
    _, alive = psutil.wait_procs(children, timeout=HANG)
    assert not alive, "a run's process outlived the command"
    Path("hold").unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("_hold")
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


@pytest.mark.slow
@pytest.mark.usefixtures("_hold")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_no_process_outlives_it(sent: signal.Signals) -> None:
    with under_way() as command:
        command.send_signal(sent)
        out, _ = command.communicate(timeout=HANG)
    assert command.returncode == 128 + sent
    assert "the same command continues the runs" in out


@pytest.mark.usefixtures("_hold")
def test_interrupted_it_tabulates_what_is_there() -> None:
    """A cluster's signal in mid-run: the table of what is finished, how to go on, status 128 + signal."""

    def interrupt() -> None:
        wait_for_third_round(threading.main_thread().is_alive)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    result = run(*LONG)
    assert result.status == 128 + signal.SIGTERM
    assert "the same command continues the runs" in result.out
    assert len(results()) == 1


@pytest.mark.usefixtures("_hold")
def test_when_the_minutes_are_over_it_stops_and_the_same_command_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps in the second run's third round: the first run is tabulated, and the second keeps two rounds."""
    began = time.monotonic()

    def clock() -> float:
        is_third = any(len(rows(file)) == 2 for file in Path("runs/sweep/runs").rglob("seed_2/run/*/metrics.csv"))
        return began + 3600 if is_third else began

    with monkeypatch.context() as patch:
        patch.setattr(workers, "time", SimpleNamespace(monotonic=clock))
        stopped = run(*LONG, "--minutes", "59.5")
    assert stopped.status == 124
    assert "the same command continues the runs" in stopped.out
    assert list(results()["seed"]) == [1]
    Path("hold").unlink()
    again = run(*LONG, "--minutes", "59.5")
    assert again.status == 0, again.err
    assert list(results()["seed"]) == [1, 2]
    (log,) = Path("runs/sweep/runs").rglob("seed_2/log.txt")
    assert "Restored all states from the checkpoint" in log.read_text(), "it did not begin anew"


def test_minutes_are_a_number_above_0() -> None:
    assert [read_minutes(text) for text in ("14", "0.5", ".5")] == [14, 0.5, 0.5]
    for text in ("0", "0.0", "-1", "inf", "nan", "1e3", "a", ""):
        with pytest.raises(ConfigurationError, match="--minutes must be a number above 0, got"):
            read_minutes(text)


@pytest.mark.slow
def test_wandb_groups_by_cell_and_tags_by_label() -> None:
    """Real offline runs, read back: one in each run's folder."""
    arguments = ["--grid", "data.batch_size=16,32", "--seeds", 1, "--rounds", 1, "--trainer.logger", "WandbLogger"]
    assert run("sweep", "--config", "tiny.yaml", *arguments).status == 0
    found = {}
    for file in Path("runs/sweep/runs").glob("*/seed_1/wandb/offline-run-*/run-*.wandb"):
        (record,) = (each.run for each in wandb_records(file) if each.WhichOneof("record_type") == "run")
        found[record.run_group] = (record.display_name, set(record.tags))
        assert record.run_id == f"{file.parents[3].name[-16:]}-1"
    assert found == {f"tiny {size}": (f"tiny {size} seed 1", {"tiny", str(size), "seed 1"}) for size in (16, 32)}


def test_without_wandb_nothing_is_said_to_it(tmp_path: Path) -> None:
    """A cell is a group, labels are tags; a job that goes on has the same id."""
    job = Job(("tiny", "16"), ("--trainer.logger=WandbLogger",), 1, 2, tmp_path / f"tiny-{16 * 'a'}" / "seed_1")
    assert wandb_arguments(dataclasses.replace(job, arguments=())) == []
    assert wandb_arguments(job) == [
        "--trainer.logger.group=tiny 16",
        "--trainer.logger.name=tiny 16 seed 1",
        "--trainer.logger.tags=[tiny, '16', seed 1]",
        f"--trainer.logger.id={16 * 'a'}-1",
        "--trainer.logger.resume=allow",
        f"--trainer.logger.save_dir={job.folder}",
    ]


def test_a_run_is_read_anew_until_it_is_finished(tmp_path: Path) -> None:
    """A stopped run may not have been evaluated yet: what was read of it then must not be what the table shows."""
    job = Job(("name",), (), 1, 2, tmp_path)
    assert job.rounds_done == 0
    (folder := tmp_path / "run" / "version_0").mkdir(parents=True)
    (folder / "metrics.csv").write_text("round,train/loss\n1,0.5\n")
    assert job.run.names == ["train/loss"]
    (folder / "metrics.csv").write_text("round,val/top1,train/loss\n1,,0.5\n2,0.9,0.4\n")
    (tmp_path / "finished.json").write_text("{}")
    assert job.run.names == ["val/top1", "train/loss"]
    assert job.run is job.run


def test_a_run_without_a_whole_round_begins_anew(tmp_path: Path) -> None:
    """It is stopped before its first checkpoint: its folder goes. One with a checkpoint stays."""
    job = job_under_way(tmp_path, top1=[0.5])
    checkpoint = last_of_run(job.run.folder)
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    clear_run_without_round(job)
    assert checkpoint.is_file()
    checkpoint.unlink()
    clear_run_without_round(job)
    assert list(job.folder.iterdir()) == []


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
    first.mkdir(parents=True)
    assert Folders(Path("runs")).of(one, "table 2") == first


def test_settings_that_make_no_difference_share_a_run() -> None:
    """Where and how it runs is no part of what is run; everything else is. A cell has a job for each seed."""

    def planned(*options: str) -> list[Job]:
        return plan(["tiny", "A"], ["--config=tiny.yaml", *options], [3, 4], Folders(Path("runs")), "tiny, A")

    jobs = planned()
    assert [(job.name, job.rounds) for job in jobs] == [("tiny A seed 3", 2), ("tiny A seed 4", 2)]
    assert [job.folder for job in planned("--experiment=other", "--trainer.logger=WandbLogger")] == [
        jobs[0].folder.parent / f"seed_{seed}" for seed in (3, 4)
    ]
    assert planned("--trainer.callbacks+=FedNova")[0].folder != jobs[0].folder
