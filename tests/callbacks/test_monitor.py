"""ConflictMonitor's measures of g₁ = (2, 0), g₂ = (-1, 1), g₃ = (-1, -2), by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import TINY, fit, process
from lightning.pytorch.loggers import CSVLogger
from toy import UPDATES, GivenData, Linear, Quadratic, ToyData, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import ConflictMonitor, FedNova, GradientHarmonization

BEFORE = {
    "conflict/ratio": 1.0,
    "conflict/min_cosine": -(0.5**0.5),
    "conflict/mean_cosine": -(0.5**0.5 + 0.2**0.5 + 0.1**0.5) / 3,
}
AFTER = {
    "conflict/ratio_after": 2 / 3,
    "conflict/min_cosine_after": -1.0,
    "conflict/mean_cosine_after": -1 / 3,
}


def conflict(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if name.startswith("conflict/")}


@pytest.mark.parametrize("monitor_first", [False, True])
def test_before_and_after_harmonization(monitor_first: bool, tmp_path: Path) -> None:
    """Products -2, -2, -1; norms 2, √2, √5: cosines -1/√2, -1/√5, -1/√10; three pairs of three in conflict.

    Harmonised in ascending order (0.4, -0.2), (-0.4, 0.2), (-1, -1): products -0.2, -0.2, 0.2; norms √0.2, √0.2, √2:
    cosines -1, -1/√10, 1/√10; two pairs of three. The place in the list of callbacks changes nothing.
    """
    rules = [GradientHarmonization(order="ascending"), ConflictMonitor()]
    run = trainer(*(rules[::-1] if monitor_first else rules), logger=CSVLogger(tmp_path), log_every_n_steps=1)
    data = GivenData(-torch.tensor(UPDATES, dtype=torch.float64), samples=[1, 1, 2])
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    assert conflict(run.callback_metrics) == pytest.approx(BEFORE | AFTER, abs=1e-6)
    assert conflict(run.logged_metrics) == pytest.approx(BEFORE | AFTER, abs=1e-6)


def test_without_a_rule_nothing_changes_after() -> None:
    run = trainer(ConflictMonitor())
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=GivenData(-torch.tensor(UPDATES, dtype=torch.float64)))
    assert conflict(run.callback_metrics) == pytest.approx(
        BEFORE | {f"{name}_after": value for name, value in BEFORE.items()}, abs=1e-6
    )


@pytest.mark.parametrize("rules", [[], [FedNova(), GradientHarmonization()]], ids=["plain", "rules"])
def test_does_not_change_the_run(rules: list[Any], tmp_path: Path) -> None:
    models = []
    for watchers in ([], [ConflictMonitor()], [ConflictMonitor(every=1)]):
        orchestrator = FederatedOrchestrator(Quadratic(momentum=0.9))
        run = trainer(*watchers, *rules, rounds=5, default_root_dir=tmp_path)
        run.fit(orchestrator, datamodule=ToyData())
        models.append(orchestrator.params)
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])
    assert len(saved(tmp_path)) == 5


def test_one_client_logs_and_writes_nothing(tmp_path: Path) -> None:
    run = trainer(ConflictMonitor(every=1), default_root_dir=tmp_path)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=GivenData(torch.ones(1, 2, dtype=torch.float64)))
    assert conflict(run.callback_metrics) == {}
    assert saved(tmp_path) == {}


def saved(folder: Path) -> dict[str, dict[str, Any]]:
    """Name and content of all that lies in ``arrays``."""
    return {path.name: dict(np.load(path)) for path in sorted((folder / "arrays").glob("*"))}


def test_saves_the_cosines_of_all_pairs(tmp_path: Path) -> None:
    """As above: -1/√2, -1/√5, -1/√10; harmonised -1, -1/√10, 1/√10. Client 0 has no data and is no row."""
    rows = torch.tensor([[5.0, 5.0], *([-x for x in update] for update in UPDATES)], dtype=torch.float64)
    rules = [GradientHarmonization(order="ascending"), ConflictMonitor(every=1)]
    run = trainer(*rules, default_root_dir=tmp_path)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=GivenData(rows, samples=[0, 1, 1, 1]))
    (arrays,) = saved(tmp_path).values()
    assert arrays["clients"].tolist() == [1, 2, 3]
    for name, (one, two, three) in {
        "before": (-(0.5**0.5), -(0.2**0.5), -(0.1**0.5)),
        "after": (-1, -(0.1**0.5), 0.1**0.5),
    }.items():
        assert arrays[name] == pytest.approx(np.array([[1, one, two], [one, 1, three], [two, three, 1]]))


@pytest.mark.parametrize(
    ("every", "rounds", "expected"), [(0, 5, []), (2, 5, [2, 4, 5]), (2, 4, [2, 4]), (9, 5, [5]), (1, 2, [1, 2])]
)
def test_saves_so_often_and_at_the_end(every: int, rounds: int, expected: list[int], tmp_path: Path) -> None:
    run = trainer(ConflictMonitor(every), rounds=rounds, default_root_dir=tmp_path)
    run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    assert list(saved(tmp_path)) == [f"cosines_{round}.npz" for round in expected]


MONITOR = "[{class_path: ConflictMonitor, init_args: {every: 2}}, {class_path: GradientHarmonization}]"
WATCHED = ["--trainer.max_epochs", "4", "--trainer.callbacks", MONITOR]


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The arrays of a run of four rounds on one device."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    fit("--experiment", "whole", *WATCHED)
    return Path("runs/whole/version_0/arrays")


def assert_same_files(one: Path, other: Path) -> None:
    assert sorted(path.name for path in one.iterdir()) == ["cosines_2.npz", "cosines_4.npz"]
    assert {path.name: path.read_bytes() for path in one.iterdir()} == {
        path.name: path.read_bytes() for path in other.iterdir()
    }


def test_a_stopped_run_saves_what_a_whole_one_does(whole: Path) -> None:
    """To the byte: stopped after round 3, it goes on."""
    fit("--experiment", "stopped", *WATCHED, "--trainer.max_epochs", 3)
    stopped = Path("runs/stopped/version_0/arrays")
    (stopped / "cosines_3.npz").unlink()  # then the last
    fit("--experiment", "stopped", *WATCHED, "--ckpt_path", "last")
    assert_same_files(whole, stopped)


@pytest.mark.slow
def test_two_devices_save_what_one_does(whole: Path) -> None:
    """To the byte, in processes of their own."""
    result = process("fit", "--config", "tiny.yaml", "--experiment", "two", *WATCHED, "--trainer.devices", 2)
    assert result.returncode == 0, result.stderr
    assert_same_files(whole, Path("runs/two/version_0/arrays"))


@pytest.mark.parametrize("every", [-1, math.nan])
def test_refuses_what_is_no_number_of_rounds(every: Any) -> None:
    with pytest.raises(ConfigurationError, match="every must be a number of rounds, 0 for never, got"):
        ConflictMonitor(every)
