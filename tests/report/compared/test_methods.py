"""Which runs are one method, and what methods are called."""

import math
from pathlib import Path
from typing import Any

import pytest
from report.folders import config, write

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.compared.methods import Method, make_methods
from fl_lightning.runs.reader import read_runs


def methods(tmp_path: Path, *configs: dict[str, Any] | None, names: tuple[str, ...] = ()) -> list[Method]:
    """Those of runs with these configs; the n-th run's only accuracy is n / 10, so that runs can be told apart."""
    runs = [write(tmp_path / f"version_{n}", {"val/top1": [n / 10]}, each) for n, each in enumerate(configs)]
    return make_methods(read_runs(runs), names)[0]


def test_runs_that_differ_in_their_seed_are_one_method(tmp_path: Path) -> None:
    """Accuracies 0, 0.2 and 0.4 of the seeds 1, 2, 3: mean 0.2, error 0.2/√3, t(0.975, 2) = 4.3027. GH is alone."""
    gh = config("GradientHarmonization")
    first, second = methods(tmp_path, config(seed=1), gh, config(seed=2), None, config(seed=3))[:2]
    assert (first.name, second.name) == ("FedAvg", "GradientHarmonization")
    assert first.band("val/top1").loc[1].tolist() == pytest.approx([0.2, 0.2 - 0.4968, 0.2 + 0.4968, 3], abs=1e-4)
    assert second.band("val/top1").loc[1].tolist() == pytest.approx([0.1, math.nan, math.nan, 1], nan_ok=True)
    assert first.label(first.runs[1]) == "FedAvg, seed 2"


def test_where_a_run_ran_and_what_only_looked_on_make_no_difference(tmp_path: Path) -> None:
    watched = config("FedNova", "ConflictMonitor", "LossSurface", "SaveCohorts", seed=2)
    watched["trainer"] |= {"devices": 4, "default_root_dir": "elsewhere"}
    watched["trainer"]["callbacks"].append({"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"})
    (only,) = methods(tmp_path, config("FedNova", seed=1), watched)
    assert only.name == "FedNova"
    assert len(only.runs) == 2


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        ([config(), config("FedProx")], ["FedAvg", "FedProx"]),
        ([config("FedProx"), config("FedProx", "FedNova")], ["FedProx", "FedProx + FedNova"]),
        ([config(alpha=0.1), config(alpha=1.0)], ["alpha=0.1", "alpha=1.0"]),
        # alpha goes with the rules, and so says nothing new
        ([config(alpha=0.1), config("FedNova", alpha=1.0)], ["FedAvg", "FedNova"]),
        (
            [config(alpha=0.1), config(alpha=1.0), config("FedNova", alpha=1.0)],
            ["FedAvg, alpha=0.1", "FedAvg, alpha=1.0", "FedNova, alpha=1.0"],
        ),
        ([None, config()], ["version_0", "FedAvg"]),
        ([None, None], ["version_0", "version_1"]),
        ([None], ["version_0"]),
        ([config("FedNova")], ["FedNova"]),
    ],
)
def test_methods_are_named_by_what_tells_them_apart(
    tmp_path: Path, configs: list[dict[str, Any] | None], names: list[str]
) -> None:
    assert [method.name for method in methods(tmp_path, *configs)] == names


def test_a_rules_argument_names_the_methods_that_have_it(tmp_path: Path) -> None:
    weak, strong = config("FedProx"), config("FedProx")
    for each, mu in ((weak, 0.01), (strong, 1)):
        each["trainer"]["callbacks"][0]["init_args"] = {"mu": mu}
    assert [method.name for method in methods(tmp_path, weak, strong)] == ["mu=0.01", "mu=1"]


def test_an_argument_that_only_one_method_has_names_it(tmp_path: Path) -> None:
    """FedAvg by n_k, which no callback names, beside FedAvg with equal weights."""
    uniform = config("FedAvg")
    uniform["trainer"]["callbacks"][0]["init_args"] = {"weighting": "uniform"}
    names = [method.name for method in methods(tmp_path, config(), uniform, config("FedNova"))]
    assert names == ["FedAvg", "FedAvg, weighting=uniform", "FedNova"]


def test_names_can_be_given(tmp_path: Path) -> None:
    assert [m.name for m in methods(tmp_path, config(), config("FedNova"), names=("a", "b"))] == ["a", "b"]


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c"), ("a", "a")])
def test_every_method_needs_a_name_of_its_own(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"each of the 2 methods \(FedAvg; FedNova\)"):
        methods(tmp_path, config(), config("FedNova"), names=names)


def test_one_seed_does_not_count_twice(tmp_path: Path) -> None:
    """The same settings and seed twice: a band over both would show agreement that says nothing."""
    runs = [write(tmp_path / name, {"val/top1": [0.5] * 4}, config(seed=1)) for name in ("first", "again")]
    (only,), notes = make_methods(read_runs(runs))
    assert [each.folder.name for each in only.runs] == ["again"]
    (note,) = notes
    assert "first is left out" in note


def test_runs_that_stopped_early_are_noted(tmp_path: Path) -> None:
    """The configs ask for four rounds; one run has all of them, one has a single round, and one has no config."""
    write(tmp_path / "a", {"val/top1": [0.1] * 4}, config(seed=1))
    write(tmp_path / "b", {"val/top1": [0.1]}, config(seed=2))
    write(tmp_path / "c", {"val/top1": [0.1]})
    _, notes = make_methods(read_runs([tmp_path]))
    assert notes == ["FedAvg, seed 2 has 1 of 4 rounds."]


def test_every_argument_of_a_users_rule_names_a_method(tmp_path: Path) -> None:
    """Of two methods that differ in one argument, both names have it."""
    runs = []
    for eta in (0.01, 0.1):
        run = config("MyRule")
        run["trainer"]["callbacks"][0]["init_args"] = {"eta": eta}
        runs.append(run)
    assert [method.name for method in methods(tmp_path, *runs)] == ["eta=0.01", "eta=0.1"]
