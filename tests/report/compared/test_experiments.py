"""Which runs stand together in one part of a page."""

from pathlib import Path

from report.folders import config, write

from fl_lightning.report.compared.experiments import experiments
from fl_lightning.runs.reader import read_runs


def parts(folder: Path) -> dict[str, list[str]]:
    """The names of the methods of each part."""
    return {part.name: [method.name for method in part.methods] for part in experiments(read_runs([folder]))}


def test_folders_with_the_same_problem_are_compared(tmp_path: Path) -> None:
    write(tmp_path / "plain" / "version_0", {"val/top1": [0.1]}, config())
    write(tmp_path / "gh" / "version_0", {"val/top1": [0.1]}, config("GradientHarmonization"))
    write(tmp_path / "other" / "version_0", {"val/top1": [0.1]}, config(alpha=10.0))
    assert parts(tmp_path) == {"gh, plain": ["GradientHarmonization", "FedAvg"], "other": ["FedAvg"]}


def test_a_folder_with_both_problems_joins_the_others(tmp_path: Path) -> None:
    """Folders a and b share nothing, until c has runs on both problems."""
    write(tmp_path / "a" / "version_0", {"val/top1": [0.1]}, config())
    write(tmp_path / "b" / "version_0", {"val/top1": [0.1]}, config(alpha=10.0))
    assert list(parts(tmp_path)) == ["a", "b"]
    for number, alpha in enumerate((0.1, 10.0)):
        write(tmp_path / "c" / f"version_{number}", {"val/top1": [0.1]}, config("FedNova", alpha=alpha))
    assert list(parts(tmp_path)) == [""]


def test_runs_of_a_sweep_are_one_experiment_and_runs_without_config_their_folders(tmp_path: Path) -> None:
    for seed in (1, 2):
        write(tmp_path / "sweep/runs/abc" / f"seed_{seed}/run/version_0", {"val/top1": [0.1]}, config(seed=seed))
    write(tmp_path / "x" / "version_0", {"val/top1": [0.1]})
    write(tmp_path / "y" / "version_0", {"val/top1": [0.1]})
    assert list(parts(tmp_path)) == ["sweep", "x", "y"]


def test_methods_of_a_sweep_come_as_they_began(tmp_path: Path) -> None:
    """Not by the hashes in the names of their folders; the first has the first colour."""
    for hashed, rules, start in (("0a", ["FedNova"], 2), ("0b", [], 1), ("0c", ["FedProx"], 3)):
        folder = tmp_path / "sweep/runs" / hashed / "seed_1/run/version_0"
        write(folder, {"val/top1": [0.1]}, config(*rules), environment={"started": f"2026-01-0{start}T00:00:00+00:00"})
    assert parts(tmp_path) == {"": ["FedAvg", "FedNova", "FedProx"]}
