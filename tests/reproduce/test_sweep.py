"""The commands of many runs before they train: mistakes in one line, the cells that are meant, the plan."""

import re
from pathlib import Path

import pytest
from lib.command import TINY, contents, run
from lib.job_folders import finished, under_way, waiting

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.read_config import config_of
from fl_lightning.reproduce.arguments import arguments
from fl_lightning.reproduce.experiments.choosing import refine, select, with_options
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.experiments.papers import find
from fl_lightning.reproduce.preflight import dry_run
from fl_lightning.reproduce.sweep.command import command as sweep

TABLE = list(find("fedgh-slides/table-2")[0].cells)


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


class TestMistakes:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (
                "reproduce fedgh-slides/table-2 --subset alpha=3 --subset method=FedAvg",
                "got alpha=3: alpha has",
            ),
            ("reproduce fedgh-slides/table-2 --data.partition.alpha 3", "would override data.partition.alpha"),
            ("reproduce fedgh-slides/table-2 --scale tiny", "table-2.yaml has no scale tiny: it has laptop"),
            ("reproduce fedgh-slides/table-2 --data.nope 3", "there is no option nope"),
            ("reproduce --ledger ledger.md --rounds 2", "--ledger takes all experiments and trains nothing"),
            ("reproduce --ledger ledger.md fedgam", "--ledger takes all experiments and trains nothing"),
            ("sweep", "give --config"),
            (
                "sweep --config tiny.yaml --rounds 2 --grid trainer.max_epochs=1,2",
                "--trainer.max_epochs would override",
            ),
            ("sweep --config tiny.yaml --grid data.batch_size", "--grid must be OPTION=VALUE"),
            ("sweep --config tiny.yaml --experiment ../elsewhere", "experiment must name a folder in runs/sweep"),
            ("sweep --config tiny.yaml --experiment runs/deeper", "experiment must name a folder in runs/sweep"),
            # Found by the pre-flight, in whichever cell it is; the other cell is not trained either.
            ("sweep --config tiny.yaml --grid data.batch_size=32,-1", "tiny -1: batch_size "),
            (
                "sweep --config tiny.yaml --trainer.callbacks FedProx --grid trainer.callbacks.mu=0.1,-1.0",
                "tiny -1: mu must be at least 0 and finite, got -1.0",
            ),
            (
                "sweep --config tiny.yaml --model.init_from nowhere.ckpt --grid data.batch_size=16,32",
                "tiny 16: init_from: expected a file of weights, a folder of an adapter, or timm: and a name",
            ),
        ],
    )
    def test_are_one_line(self, line: str, message: str) -> None:
        result = run(*line.split())
        assert result.status == 2
        assert message in result.err
        assert len(result.err.strip().splitlines()) == 1
        assert not Path("runs").exists()

    @pytest.mark.parametrize("more", ["--data.partition=IID", "--trainer.callbacks=FedNova", "--trainer.callbacks=[]"])
    def test_an_option_may_not_make_labels_false(self, more: str) -> None:
        with pytest.raises(ConfigurationError, match=f"{more.partition('=')[0]} would override .*, which the grid"):
            with_options(TABLE, [more])
        assert len(with_options(TABLE, ["--trainer.callbacks+=FedNova"])) == len(TABLE)


def test_options_of_fit_may_come_first() -> None:
    """The value of an option that is passed on is no experiment's id."""
    line = ["reproduce", "--data.root", "DIR", "--rounds", "3", "fedlaw", "--trainer.devices=2", "--first_seed", "4"]
    asked, runs = arguments(line)
    assert asked.id == ["fedlaw"]
    assert runs.options == ("--trainer.max_epochs=3", "--data.root", "DIR", "--trainer.devices=2")
    assert (list(runs.seeds), runs.jobs, runs.out) == ([4, 5, 6], 1, Path("runs/reproduce"))


@pytest.mark.parametrize(("scale", "shorter"), [([], "--scale laptop"), (["--scale", "laptop"], "")])
def test_a_scale_is_proposed_to_those_who_name_none(scale: list[str], shorter: str) -> None:
    assert arguments(["reproduce", "fedlaw", *scale])[1].shorter == shorter


class TestCells:
    def test_a_grid_acts_after_the_options_of_all_runs(self) -> None:
        """So a rule given for all runs can be swept; two rows of labels that are true."""
        options = ["--trainer.callbacks", "ConflictMonitor", "--trainer.callbacks+=FedProx"]
        cells = refine(with_options([Cell({}, ())], options), ["trainer.callbacks.mu=0.1,0.2"])
        found = [config_of(["--config=tiny.yaml", *cell.options])["trainer"]["callbacks"] for cell in cells]
        assert [rules[-1]["init_args"]["mu"] for rules in found] == [0.1, 0.2]
        assert [len(rules) for rules in found] == [2, 2]

    def test_chains_of_rules_are_labels(self) -> None:
        chain = "[{class_path: FedProx, init_args: {mu: 0.1}}, {class_path: mine.FedNova}]"
        cells = refine([Cell({"a": 1}, ())], [f"trainer.callbacks=[{chain}, []]"])
        assert [cell.labels for cell in cells] == [
            {"a": 1, "trainer.callbacks": "FedProx(mu=0.1) + FedNova"},
            {"a": 1, "trainer.callbacks": "[]"},
        ]

    def test_a_subset_has_the_labels_of_every_named_axis(self) -> None:
        chosen = select(TABLE, ["alpha=0.1,IID", "method=FedAvg"], "x")
        assert [dict(cell.labels) for cell in chosen] == [
            {"alpha": 0.1, "method": "FedAvg"},
            {"alpha": float("inf"), "method": "FedAvg"},
        ]
        with pytest.raises(ConfigurationError, match="the axes are alpha, method"):
            select(TABLE, ["beta=1"], "x")


class TestDryRun:
    def test_tells_the_plan_and_leaves_nothing(self) -> None:
        grid = ["--grid", "data.partition.alpha=0.1,1.0", "--grid", "model.local_epochs=1,2"]
        result = run("sweep", "--config", "tiny.yaml", *grid, "--seeds", 2, "--dry-run")
        assert (result.status, result.err) == (0, "")
        assert result.out.splitlines() == [
            "planning tiny: 4 cells …",
            "tiny: 4 cells, seeds 1 to 2: 8 runs",
            "time: unknown until a run has begun",
            "pre-flight passed: configs, callbacks and data",
        ]
        assert list(contents(".")) == ["tiny.yaml"]

    @pytest.mark.parametrize(("given", "expected"), [([], "base/name"), (["--experiment", "own"], "own")])
    def test_results_are_named_by_the_experiment(
        self, given: list[str], expected: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Of the command line, else of the config or a file that it builds on."""
        Path("tiny.yaml").write_text(f"experiment: base/name\n{TINY}")
        Path("mine.yaml").write_text("base: tiny.yaml\n")
        assert sweep(["sweep", "--config", "mine.yaml", "--dry-run", *given]) == 0
        assert f"{expected}: 1 cell, seeds 1 to 3: 3 runs" in capsys.readouterr().out

    def test_time_of_runs_that_have_begun(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Rounds of 120 s: three of four are left of the first run, four each of two others; 22 minutes.

        With a finished run of 1 s a round in their place, 8 rounds of two others take 8 s, by two at a time 4 s.
        """
        experiment = Experiment("mine", "a source", "a metric", "", (), "mine.yaml", ("val/top1",))
        begun = [under_way(tmp_path, 1, seconds=120, top1=[0.5]), waiting(tmp_path, 2), waiting(tmp_path, 3)]
        assert dry_run([(experiment, [(Cell({}, ()), job) for job in begun])], [], [], 1) == 0
        assert "time: about 22 minutes\n" in capsys.readouterr().out
        done = under_way(tmp_path / "done", 1, rounds=1, seconds=1, top1=[0.5])
        (done.folder / "finished.json").write_text('{"seconds": 1}')
        rest = [waiting(done.folder.parent, 2), waiting(done.folder.parent, 3)]
        assert dry_run([(experiment, [(Cell({}, ()), job) for job in [done, *rest]])], [], ["MNIST"], 2) == 0
        told = capsys.readouterr().out
        assert "mine: 1 cell, seeds 1 to 3: 3 runs, 1 finished before\n" in told
        assert re.search(r"^time: about 4 s, 2 runs at a time, if each is as fast as one alone$", told, re.M), told
        assert "to download: MNIST\npre-flight passed: configs\n" in told
        assert dry_run([(experiment, [(Cell({}, ()), finished(tmp_path / "all", 1))])], ["no"], [], 1) == 2
        told = capsys.readouterr().out
        assert "time" not in told
        assert "pre-flight failed: no\n" in told

    def test_tells_missing_data_once(self) -> None:
        """Six cells, two data sets that are not there; what can be downloaded is no obstacle."""
        sets = "[{class_path: MNIST}, {class_path: CIFAR10, init_args: {download: false}}]"
        Path("tiny.yaml").write_text(TINY.replace("in_features: 64", "in_features: 784").partition("data:")[0])
        result = run(
            "sweep",
            "--config",
            "tiny.yaml",
            "--grid",
            f"data={sets}",
            "--grid",
            "model.local_epochs=1,2,3",
            "--dry-run",
        )
        assert result.status == 2
        problem, comes = sorted(line for line in result.out.splitlines() if "expected" in line)
        assert problem.startswith("pre-flight failed: expected CIFAR10 in ")
        assert comes.startswith("to download: expected MNIST in ")

    def test_files_of_ones_own_that_are_missing(self) -> None:
        """Nobody can download these: the command ends before it trains anything."""
        data = "data: {class_path: ImageFolder, init_args: {root: mine, image_size: 8, cache: null}}"
        Path("tiny.yaml").write_text(TINY.partition("data:")[0] + data)
        result = run("sweep", "--config", "tiny.yaml")
        assert result.status == 2
        assert [line.partition(": ")[0] for line in result.err.splitlines() if "mine" in line] == ["fl-lightning"]

    def test_reproduce_has_it_too(self) -> None:
        """A figure of partitions trains nothing; two tables are told together."""
        ids = ["fedlaw/fig-13", "fedgh-slides/table-2"]
        result = run("reproduce", *ids, "--data.root", "nowhere", "--data.download", "false", "--dry-run")
        assert result.status == 2
        assert "fedlaw/fig-13: 1 cell, drawn without training" in result.out
        assert "fedgh-slides/table-2: 10 cells, seeds 1 to 3: 30 runs" in result.out
        assert "in total: 30 different runs; 30 to train" in result.out
        assert not Path("runs").exists()


def test_a_measure_that_no_run_has_leaves_the_tables_as_they_are() -> None:
    line = ["sweep", "--config", "tiny.yaml", "--grid", "model.local_epochs=1,2", "--seeds", 1]
    assert run(*line).status == 0

    def tables() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path("runs/sweep/tiny").glob("*.*")}

    before = tables()
    assert {"comparison.csv", "results.csv", "report.html"} <= {path.name for path in before}
    result = run(*line, "--measures", "val/top9")
    assert result.status == 2
    assert "the runs log no val/top9" in result.err
    assert tables() == before
