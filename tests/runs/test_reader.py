"""What a report reads: runs and folders of runs; whatever is missing or damaged is told in one line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lib.command import run
from report.folders import config, write

from fl_lightning.errors import ConfigurationError
from fl_lightning.runs.reader import Run, load, read_runs

COSINES = {"clients": [0, 1], "before": [[1, 0], [0, 1]], "after": [[1, 0], [0, 1]]}


def test_a_run_is_read(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "run",
        {"val/top1": [0.5, ""], "clients/loss/10": ["", 2.0], "clients/loss/9": [1.0, ""]},
        config(seed=7),
        {"seconds": [1.5, 2.5]},
        {"device": "cpu"},
        cosines_10=COSINES,
        cosines_2=COSINES,
    )
    (only,) = read_runs([folder])
    assert only.seed == 7
    assert only.environment == {"rules": [], "device": "cpu"}
    assert only.metrics["val/top1"].dropna().to_dict() == {1: 0.5}
    assert only.timings["seconds"].to_dict() == {1: 1.5, 2: 2.5}
    clients = only.items("clients/loss")  # in the order of numbers, not of names
    assert list(clients) == [9, 10]
    assert clients[10][2] == 2.0
    assert list(only.arrays("cosines")) == [2, 10]


def test_the_names_of_clients_are_read(tmp_path: Path) -> None:
    """They are no numbers of examples; a run without a partition, or with one of numbers alone, has none."""
    sizes = {"sizes": [3, 1], "counts": [[3, 0], [0, 1]]}
    named = Run(write(tmp_path / "a", {"val/top1": [0.5]}, partition={**sizes, "names": ["oslo", "Rome €"]}))
    assert named.client_names() == ["oslo", "Rome €"]
    assert {name: array.tolist() for name, array in named.partition().items()} == sizes
    assert Run(write(tmp_path / "b", {"val/top1": [0.5]}, partition=sizes)).client_names() is None
    assert Run(write(tmp_path / "c", {"val/top1": [0.5]})).client_names() is None
    wrong = Run(write(tmp_path / "d", {"val/top1": [0.5]}, partition={**sizes, "names": ["oslo"]}))
    with pytest.raises(ConfigurationError, match=r"must hold a name for each client, got \(1,\) names: delete it"):
        wrong.client_names()


def test_a_folder_of_runs_gives_each_once_in_the_order_of_experiments_and_versions(tmp_path: Path) -> None:
    names = ("a10/version_2", "a9/version_10", "a9/version_9", "a9/version_8")
    folders = [write(tmp_path / "runs" / name, {"val/top1": [0.5]}) for name in names]
    (tmp_path / "runs" / "a9" / "version_12").mkdir()  # stopped before its first round was over
    found = read_runs([tmp_path / "runs", folders[1]])
    assert [each.folder.relative_to(tmp_path / "runs").as_posix() for each in found] == [*reversed(names)]


def test_metrics_alone_are_a_run(tmp_path: Path) -> None:
    (only,) = read_runs([write(tmp_path / "run", {"val/top1": [0.5]})])
    assert (only.seed, only.config, only.environment) == (None, {}, {})
    assert only.timings.empty
    assert only.arrays("cosines") == {}


def test_without_the_names_of_the_rules_the_settings_are_unknown(tmp_path: Path) -> None:
    """Such a run stays a method of its own: taken for FedAvg, a run of GH would be averaged with one of FedAvg."""
    folder = write(tmp_path / "run", {"val/top1": [0.5]}, config("GradientHarmonization"))
    assert Run(folder).settings["rules"] == "GradientHarmonization"
    (folder / "environment.yaml").unlink()
    assert Run(folder).settings == {}


def test_the_torn_line_of_a_killed_run_is_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {"val/top1": [0.5, 0.6]}, timings={"seconds": [1, 2]})
    with (folder / "timings.csv").open("a") as file:
        file.write("3,2.")
    assert list(read_runs([folder])[0].timings.index) == [1, 2]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.csv", b""),
        ("metrics.csv", b"round,val/top1\r\n"),
        ("metrics.csv", b"epoch,val/top1\r\n1,0.5\r\n"),
        ("metrics.csv", b"round,val/top1\r\n1,good\r\n"),
        ("metrics.csv", b"round,val/top1\r\n1,0.5\r\n1,0.6\r\n"),
        ("metrics.csv", bytes(range(256))),
        ("timings.csv", b"\0\0\0"),
        ("timings.csv", b"round,seconds\r\n1,0.5\r\n"),
        ("config.yaml", b"trainer: ["),
        ("config.yaml", b"a list"),
        ("environment.yaml", b"\xff\xfe\xff"),
        ("better.yaml", b"val/top1: larger"),
        ("better.yaml", b"val/top1: ["),
        ("arrays/cosines_1.npz", b"PK\x03\x04"),
        ("arrays/partition.npz", b""),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, file: str, content: bytes) -> None:
    folder = write(tmp_path / "run", {"val/top1": [0.5]}, config(), cosines_1=COSINES)
    (folder / file).write_bytes(content)
    result = run("report", folder)
    assert result.status == 2
    assert len(result.err.strip().splitlines()) == 1
    assert file in result.err
    assert "leave this run out" in result.err
    assert not (folder / "report.html").exists()


def test_arrays_without_what_they_must_hold_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {"val/top1": [0.5]}, partition={"counts": [[1, 2]]})
    with pytest.raises(ConfigurationError, match="must hold sizes, and lacks sizes"):
        load(folder / "arrays" / "partition.npz", "sizes")


@pytest.mark.parametrize(
    ("made", "said"), [(None, "does not exist"), ("empty", "holds no run folder"), ("file", "is not a folder")]
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, made: str | None, said: str) -> None:
    path = tmp_path / "run"
    if made == "empty":
        path.mkdir()
    elif made:
        path.write_text("")
    result = run("report", path)
    assert result.status == 2
    assert len(result.err.strip().splitlines()) == 1
    assert said in result.err
    assert "runs/<experiment>/<version>" in result.err


ODD = {
    "two dimensions": {"sizes": np.ones((4, 4), int)},
    "texts": {"sizes": np.array(["a", "b"])},
    "not finite": {"sizes": np.array([np.nan, 1.0])},
    "a number": {"sizes": np.int64(4)},
    "negative": {"sizes": np.array([-1, 2])},
    "counts of one dimension": {"sizes": np.ones(4, int), "counts": np.ones(4, int)},
    "counts of other clients": {"sizes": np.ones(4, int), "counts": np.ones((3, 10), int)},
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_partition(kind: str, tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    np.savez(tmp_path / "arrays" / "partition.npz", **ODD[kind])
    with pytest.raises(ConfigurationError, match=r"partition.npz must hold numbers of examples, sizes \(N,\)"):
        Run(tmp_path).partition()


def test_config_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("trainer: 5\n")
    with pytest.raises(ConfigurationError, match=r"config.yaml is damaged: expected names and values in trainer"):
        _ = Run(tmp_path).config


def test_a_table_of_many_columns_is_the_one_that_pandas_reads_as_one_array(tmp_path: Path) -> None:
    """A report of 50,000 columns would otherwise take minutes: pandas works through arrays one by one."""
    values = {f"clients/loss/{k}": [k, "", 1.5 - k] for k in range(500)}
    run = Run(write(tmp_path / "run", values))
    file = pd.read_csv(run.folder / "metrics.csv", index_col="round").astype(float)
    pd.testing.assert_frame_equal(run.metrics, file)
    assert np.shares_memory(run.metrics.to_numpy(), run.metrics.to_numpy()), "no copy of each column"
