"""Tuning: as many tries for each method, on a seed of their own; the best one is compared. And a rule of one's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lib.image_files import write_idx

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.read_config import callbacks_of, config_of
from fl_lightning.reproduce.benchmark.tuning import in_tries, name_of, tuned, with_best, with_rule
from fl_lightning.reproduce.command import command
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment, Tuning
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.reproduce.experiments.scale import at_scale
from fl_lightning.reproduce.run_options import RunOptions

TUNED = [experiment for experiment in experiments().values() if experiment.tuning]


def experiment(**settings: Any) -> Experiment:
    tuning = Tuning(
        every={"model.client.optimizer.lr": [0.1, 0.3]},
        method={"FedAvg": {"model.server_optimizer.lr": [1.0, 1.5]}, "Prox": {"trainer.callbacks.mu": [0.01, 0.1]}},
        options={"data.validation_examples": 20},
    )
    cells = (Cell({"method": "FedAvg"}, ()), Cell({"method": "Prox"}, ("--trainer.callbacks+=FedProx",)))
    facts: dict[str, Any] = {"id": "mine/skew", "source": "", "metric": "", "claim": "", "rows": (), "config": ""}
    return Experiment(**{**facts, "measures": ("top1",), "cells": cells, "tuning": tuning, **settings})


def test_tries_are_all_combinations() -> None:
    tries = in_tries(experiment())
    assert tries.id == "mine-tuning/skew"
    assert [cell.labels["method"] for cell in tries.cells] == ["FedAvg"] * 4 + ["Prox"] * 4
    assert tries.cells[6].labels["try"] == "optimizer.lr 0.3, callbacks.mu 0.01"
    assert tries.cells[6].options == (
        "--trainer.callbacks+=FedProx",
        "--model.client.optimizer.lr=0.3",
        "--trainer.callbacks.mu=0.01",
        "--data.validation_examples=20",
    )


def test_the_best_try_is_compared_without_validation_examples() -> None:
    """Prox's third try is its best; a try without a result, and a method without one, do not count."""
    tries = in_tries(experiment())
    rows = [{**cell.labels, "round": 1, "seed": 0, "top1": float(at)} for at, cell in enumerate(tries.cells)]
    rows[7]["top1"] = float("nan")
    chosen = with_best(experiment(), pd.DataFrame(rows))
    assert [cell.labels for cell in chosen.cells] == [{"method": "FedAvg"}, {"method": "Prox"}]
    assert chosen.cells[1].options == (
        "--trainer.callbacks+=FedProx",
        "--model.client.optimizer.lr=0.3",
        "--trainer.callbacks.mu=0.01",
    )
    assert chosen.tuning is None
    without = with_best(experiment(), pd.DataFrame(rows[:4]))
    assert [cell.labels["method"] for cell in without.cells] == ["FedAvg"]


def test_unequal_budgets_are_refused() -> None:
    own = experiment()
    assert own.tuning is not None
    unequal = {**own.tuning.method, "Prox": {"trainer.callbacks.mu": [0.01]}}
    with pytest.raises(ConfigurationError, match="same number of tries, but FedAvg has 4 and Prox has 2"):
        in_tries(replace(own, tuning=replace(own.tuning, method=unequal)))
    with pytest.raises(ConfigurationError, match=r"must name what Prox tries, got FedAvg$"):
        in_tries(replace(own, tuning=replace(own.tuning, method={"FedAvg": {}})))


def test_a_rule_of_ones_own_is_a_row() -> None:
    added = with_rule(experiment(), "my_rules.Clipping", ["c=0.5,1"])
    tries = in_tries(added)
    assert [cell.labels["method"] for cell in tries.cells[-4:]] == ["Clipping"] * 4
    assert tries.cells[-1].options[:1] == ("--trainer.callbacks+=my_rules.Clipping",)
    assert tries.cells[-1].labels["try"] == "optimizer.lr 0.3, callbacks.c 1"
    assert name_of("Clipping") == "Clipping"
    with pytest.raises(ConfigurationError, match=r"--rule adds a row to experiments whose methods are tuned, got x"):
        with_rule(experiment(id="x", tuning=None), "my_rules.Clipping", [])


@pytest.mark.parametrize(("seeds", "taken"), [(range(3), 0), (range(100, 103), 101)])
def test_the_seeds_of_tries_and_confirmation_are_refused(seeds: range, taken: int, tmp_path: Path) -> None:
    runs = RunOptions("", tmp_path, seeds, (), [], 1, dry_run=True)
    with pytest.raises(ConfigurationError, match=rf"seed 0 is that of the tries, and 101 to 108 .*, got {taken}: set"):
        tuned([experiment()], runs)


def test_every_method_of_the_benchmark_can_be_read() -> None:
    """On the first problem that has the method: its last try makes the callbacks, and validates on training images."""
    read = set[str]()
    for problem in TUNED:
        tries = in_tries(at_scale("full", problem))  # refuses unequal budgets
        for cell in tries.cells[3::4]:  # the last of each method
            method = cell.labels["method"]
            if method not in read:
                read.add(method)
                config = config_of([f"--config={tries.config}", *cell.options])
                assert config["data"]["init_args"]["validation_examples"] == 2000
                assert len(callbacks_of(config)) >= (1 if method == "FedAvg" else 2)
    assert len(read) >= 30


@pytest.mark.slow
def test_a_rule_of_ones_own_is_tuned_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On drawn images in place of Fashion-MNIST: eight tries, six runs and a table; then nothing is trained again."""
    draw = np.random.default_rng(0)
    images = {"train": draw.integers(256, size=(2300, 28, 28)), "t10k": draw.integers(256, size=(100, 28, 28))}
    labels = {split: draw.integers(10, size=len(drawn)) for split, drawn in images.items()}
    write_idx(
        tmp_path / "FashionMNIST" / "raw",
        {split: drawn.astype(np.uint8) for split, drawn in images.items()},
        {split: drawn.astype(np.uint8) for split, drawn in labels.items()},
    )
    options = [f"--data.root={tmp_path}", "--data.train_examples=300", "--trainer.max_epochs=2"]
    options += ["--trainer.check_val_every_n_epoch=1", "--data.test_examples=100", "--out", str(tmp_path / "out")]
    line = ["reproduce", "--quick", "--rule", "fl_lightning.callbacks.NormClipping", "--grid", "threshold=0.5,1"]
    assert command([*line, *options]) == 0
    told = capsys.readouterr().out
    assert "8 runs; starting" in told
    assert "6 runs; starting" in told
    table = told[told.rindex("label-skew") :]
    assert table.index("FedAvg ") < table.index("× 1.0") < table.index("NormClipping")  # FedAvg's row stands first
    assert command([*line, *options]) == 0
    again = capsys.readouterr().out
    assert "starting" not in again
    assert again[again.rindex("label-skew") :] == table


def test_failed_tries_leave_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digits have too few images for the validation of the tries: nothing is compared, and the exit status is 1."""
    line = ["reproduce", "--quick", "--subset", "method=FedAvg", "--data=Digits", "--data.train_examples=600"]
    assert command([*line, "--data.test_examples=200", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("expected validation_examples of at most 1442") == 8  # at once, and at the end
