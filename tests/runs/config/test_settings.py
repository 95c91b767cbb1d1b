"""What tells runs apart: settings by short names, the chain of rules, fingerprints of the data."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from report.folders import config
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.datamodules import Digits
from fl_lightning.datamodules.partition import Dirichlet
from fl_lightning.engine.federation.clients import data_fingerprint
from fl_lightning.fit.read_config import config_of
from fl_lightning.runs.config.resuming import changed_settings
from fl_lightning.runs.config.settings import method_name, named_settings, settings_fingerprint


def test_settings_have_short_names() -> None:
    found = named_settings(config("FedProx", alpha=0.3), ["FedProx"])
    assert found["rules"] == "FedProx"
    assert found["data.class"] == "Digits"
    assert found["data.partition.class"] == "Dirichlet"
    assert found["data.partition.alpha"] == 0.3
    assert "seed_everything" not in found
    assert "experiment" not in found


def test_the_hash_of_the_settings_knows_no_seed() -> None:
    """W&B puts the seeds into one group by the hash."""
    one, other, third = (config("FedProx", **each) | {"model": {}} for each in ({}, {"seed": 2}, {"alpha": 0.2}))
    assert settings_fingerprint(one) == settings_fingerprint(other) != settings_fingerprint(third)


def test_names_of_clients_are_no_setting_that_tells_runs_apart() -> None:
    named, plain, before = (config("FedProx") | {"model": {}} for _ in range(3))
    named["data"]["init_args"]["client_names"] = ["bern", "lyon", "oslo", "rome"]
    plain["data"]["init_args"]["client_names"] = None
    found = [named_settings(each, ["FedProx"]) for each in (named, plain, before)]
    assert found[0] == found[1] == found[2]
    assert settings_fingerprint(named) == settings_fingerprint(plain) == settings_fingerprint(before)


def test_arguments_that_came_later_do_as_before() -> None:
    """Finished runs of TimmNetwork are found, and go on; with another value, a run is another one."""
    now = config_of(["--config=papers/fedgh-slides/table-5.yaml"])
    arguments = now["model"]["client"]["init_args"]["network"]["init_args"]
    before = copy.deepcopy(now)
    old = before["model"]["client"]["init_args"]["network"]["init_args"]
    for name in ("pretrained", "adapt", "rank", "targets", "freeze", "settings"):
        del old[name]
    assert settings_fingerprint(now) == settings_fingerprint(before)
    assert changed_settings(before, now) == {}
    arguments["adapt"] = "head"
    assert settings_fingerprint(now) != settings_fingerprint(before)
    assert [name.rpartition(".")[2] for name in changed_settings(before, now)] == ["adapt"]


@pytest.mark.parametrize(("one", "other"), [(0.01, 0.1), (None, 5), (1.0, 0.5), ("epoch", "step")])
@pytest.mark.parametrize("argument", ["eta", "resize", "width", "scheduler_interval"])
def test_every_argument_of_a_users_rule_tells_runs_apart(argument: str, one: Any, other: Any) -> None:
    """Whatever its name and its value, and a config that lacks the argument is another one, too."""
    runs = [config("MyRule") | {"model": {}} for _ in range(3)]
    for run, value in zip(runs, (one, other), strict=False):
        run["trainer"]["callbacks"][0]["init_args"] = {argument: value}
    assert [named_settings(run, ["MyRule"]).get(f"MyRule.{argument}", ...) for run in runs] == [one, other, ...]
    assert len({settings_fingerprint(run) for run in runs}) == 3


def test_the_rules_are_those_that_the_run_has_written_down() -> None:
    """Whatever the callbacks are called; a rule's arguments stand among the settings, a monitor's do not."""
    run = config("Watcher", "OddMonitor", alpha=0.3)
    run["trainer"]["callbacks"][0]["init_args"] = {"every": 3}
    run["trainer"]["callbacks"][1]["init_args"] = {"strength": 2}
    found = named_settings(run, ["OddMonitor"])
    assert found["rules"] == "OddMonitor"
    assert found["OddMonitor.strength"] == 2
    assert not [name for name in found if "Watcher" in name]
    assert named_settings(run, [])["rules"] == "FedAvg"


@pytest.mark.parametrize(
    ("rule", "arguments", "name"),
    [
        ("FedProx", {"mu": 0.1}, "FedProx(mu=0.1)"),  # has no default
        ("GradientHarmonization", {"variant": "paper", "order": "random"}, "GradientHarmonization"),
        ("GradientHarmonization", {"variant": "slides", "order": "random"}, "GradientHarmonization(variant=slides)"),
        ("FedAdam", {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1.0}, "FedAdam(tau=1.0)"),
        ("NotThere", {"list": [1, 2]}, "NotThere(list=[1, 2])"),  # without the class, all arguments are named
        ("NotThere", {"part": {"class_path": "mine.Part", "init_args": {"x": 1}}}, "NotThere(part=Part(x=1))"),
    ],
)
def test_a_method_is_named_by_its_rules_and_the_arguments_that_are_no_defaults(
    rule: str, arguments: dict[str, Any], name: str
) -> None:
    run = config("ConflictMonitor", rule, "FedNova")
    run["trainer"]["callbacks"][1]["init_args"] = arguments
    assert method_name(run, [rule, "FedNova"]) == f"{name} + FedNova"
    assert method_name(run | {"seed_everything": 7}, [rule]) == name
    assert method_name(run, []) == "FedAvg"


def digits(seed: int = 1, alpha: float = 0.5, num_clients: int = 4) -> Digits:
    data = Digits(num_clients=num_clients, partition=Dirichlet(alpha=alpha), seed=seed)
    data.prepare_data()
    data.setup("fit")
    return data


def test_same_data_same_data_fingerprint() -> None:
    assert data_fingerprint(digits()) == data_fingerprint(digits())


@pytest.mark.parametrize("change", [{"seed": 2}, {"alpha": 0.6}, {"num_clients": 5}])
def test_other_data_other_data_fingerprint(change: dict[str, Any]) -> None:
    assert data_fingerprint(digits()) != data_fingerprint(digits(**change))


class Examples(Dataset[Any]):
    """Two examples, made by what is given."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Two(FederatedDataModule):
    """Two clients with the same two examples."""

    num_clients = 2

    def __init__(self, dataset: Dataset[Any]) -> None:
        super().__init__()
        self.dataset = dataset

    def client_dataset(self, client: int) -> Dataset[Any]:
        return self.dataset


def of(make: Any) -> str:
    return data_fingerprint(Two(Examples(make)))


def test_one_number_of_an_example_makes_a_difference() -> None:
    images = torch.zeros(2, 1, 8, 8)
    before = data_fingerprint(Two(TensorDataset(images)))
    images[1, 0, 7, 7] = 1e-6
    assert data_fingerprint(Two(TensorDataset(images))) != before


def test_what_is_in_dicts_and_lists_makes_a_difference() -> None:
    first, again, other = (of(lambda i, word=word: {"words": [word, i], "x": torch.ones(2)}) for word in "aab")
    assert first == again != other


def fail(index: int) -> Any:
    raise OSError("the file is gone")


def test_examples_that_tell_nothing_are_left_out() -> None:
    """Those that cannot be read, that differ from one reading to the next, or that are objects without bytes."""
    draws = np.random.default_rng(0)
    sizes_alone = of(fail)
    with pytest.warns(UserWarning, match="examples of client 0 differ when they are read twice with the same seeds"):
        assert of(lambda index: draws.random()) == sizes_alone
    assert of(lambda index: object()) == sizes_alone
    assert of(lambda index: 1.0) != sizes_alone


def test_augmentation_makes_no_difference_and_no_draws() -> None:
    """It draws from global generators: the same for each reading, which are then as they were."""
    torch.manual_seed(1)
    first = of(lambda index: torch.rand(3) + np.random.rand())
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert of(lambda index: torch.rand(3) + np.random.rand()) == first != of(fail)
    assert torch.equal(torch.get_rng_state(), state)
