"""Search: draws for each method, the best third to the end, and a test of what is chosen. And a rule of one's own."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lib.image_files import write_idx

import fl_lightning.reproduce.command as commands
from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.read_config import callbacks_of, config_of
from fl_lightning.reproduce.benchmark import search
from fl_lightning.reproduce.benchmark.search import in_draws, in_final, in_tests, searched, short_name, with_rule
from fl_lightning.reproduce.command import command
from fl_lightning.reproduce.experiments.choosing import with_options
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment, Tuning
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.reproduce.experiments.scale import at_scale
from fl_lightning.reproduce.run_options import RunOptions

SEARCHED = [experiment for experiment in experiments().values() if experiment.tuning]
CONFIG = "base: digits_gh.yaml\ntrainer: {max_epochs: 40, check_val_every_n_epoch: 4}"


def experiment(folder: Path, **settings: Any) -> Experiment:
    tuning = Tuning(
        every={"model.client.optimizer.lr": {"log": [0.01, 1.0]}, "model.local_lr_scheduler": ["constant", "cosine"]},
        method={"FedAvg": {}, "Prox": {"trainer.callbacks.mu": [0.01, 0.1]}},
        options={"data.validation_examples": 20},
    )
    config = folder / "skew.yaml"
    config.write_text(CONFIG)
    cells = (Cell({"method": "FedAvg"}, ()), Cell({"method": "Prox"}, ("--trainer.callbacks+=FedProx",)))
    facts: dict[str, Any] = {"id": "mine/skew", "source": "", "metric": "", "claim": "", "rows": (), "last": 13}
    given = {"config": str(config), "measures": ("top1",), "cells": cells, "tuning": tuning, "noted": ("bytes/up",)}
    return Experiment(**{**facts, **given, **settings})


def test_draws_are_trained_for_a_third_of_the_rounds(tmp_path: Path) -> None:
    """A third of 40 rounds, with evaluations every 4, is 12: the mean is taken over as large a part of them."""
    draws = in_draws(experiment(tmp_path), [1, 2])
    assert draws.id == "mine-draws/skew"
    assert (draws.last, draws.noted, draws.tuning) == (4, (), None)
    assert [cell.labels["method"] for cell in draws.cells] == ["FedAvg"] * 24 + ["Prox"] * 24
    assert [cell.seeds for cell in draws.cells[:24]] == [(1,)] * 12 + [(2,)] * 12
    names = [cell.labels["try"] for cell in draws.cells]
    assert len(set(names[:24])) == 24
    rates = [[name.split()[0] for name in part] for part in (names[:12], names[24:36])]
    assert rates[0] == rates[1], "in one search all methods draw the same rates"
    cell = draws.cells[24]
    assert cell.options[0] == "--trainer.callbacks+=FedProx"
    assert cell.options[-2:] == ("--data.validation_examples=20", "--trainer.max_epochs=12")
    with_decay = [cell for cell in draws.cells if "cosine" in cell.labels["try"]]
    assert len(with_decay) == 24
    assert all("T_max: 12" in " ".join(cell.options) for cell in with_decay)


def test_rounds_given_for_all_runs_are_the_problems(tmp_path: Path) -> None:
    """Written with a blank or with an equals sign."""
    cells = with_options(experiment(tmp_path).cells, ["--trainer.max_epochs", "24"])
    assert in_draws(experiment(tmp_path, cells=tuple(cells)), [1]).cells[0].options[-1] == "--trainer.max_epochs=8"


def test_the_best_are_trained_to_the_end_and_tested_with_other_seeds(tmp_path: Path) -> None:
    own = experiment(tmp_path)
    names = [cell.labels["try"] for cell in in_draws(own, [2]).cells]
    decayed = next(name for name in names[12:] if "cosine" in name)
    kept = {("FedAvg", 2): names[:2], ("Prox", 2): [decayed]}
    final = in_final(own, kept)
    assert (final.id, final.last) == ("mine-final/skew", 13)
    assert [(cell.labels["try"], cell.seeds) for cell in final.cells] == [
        (name, (2,)) for name in (*names[:2], decayed)
    ]
    assert all(cell.options[-1] == "--trainer.max_epochs=40" for cell in final.cells)
    tests = in_tests(own, kept)
    assert (tests.id, tests.noted, tests.prints) == ("mine/skew", ("bytes/up",), False)
    assert [(cell.labels["method"], cell.labels["budget"], cell.seeds) for cell in tests.cells] == [
        ("FedAvg", 1, (1002, 2002, 3002)),
        ("FedAvg", 2, (1002,)),
        ("Prox", 1, (1002, 2002, 3002)),
        ("Prox", 2, (1002,)),
    ]
    longer = " ".join(tests.cells[3].options)
    assert "--trainer.max_epochs=80" in longer
    assert "T_max: 80" in longer, "the decay ends with the longer run"
    assert "validation_examples" not in longer


def test_what_is_chosen_is_the_best_by_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the draws Prox's rates count upwards, FedAvg's downwards; one draw has no result."""
    asked = list[Experiment]()

    def run(experiments: Any, runs: RunOptions) -> int:
        (stage,) = experiments
        asked.append(stage)
        rows = []
        for cell in stage.cells:
            rate = float(cell.labels["try"].split()[0].partition("=")[2])
            value = rate if cell.labels["method"] == "Prox" else -rate
            rows.append({**cell.labels, "round": 1, "seed": cell.seeds[0], "top1": value if rate < 0.9 else np.nan})
        folder = runs.out / stage.id
        folder.mkdir(parents=True)
        pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)
        return 1  # a draw that fails is not chosen, and is no failure of the search

    monkeypatch.setattr(search, "run", run)
    tests, status = searched(experiment(tmp_path), RunOptions("", tmp_path, [1], (), [], 1, dry_run=False))
    assert tests is not None
    assert status == 0
    assert [len(stage.cells) for stage in asked] == [24, 8]
    rates = sorted(float(cell.labels["try"].split()[0].partition("=")[2]) for cell in asked[0].cells[:12])
    chosen = [float(cell.labels["try"].split()[0].partition("=")[2]) for cell in tests.cells[::2]]
    assert chosen == [rates[0], max(rate for rate in rates if rate < 0.9)]


def test_a_stopped_search_tests_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = RunOptions("", tmp_path, [1], (), [], 1, dry_run=False)
    for status in (130, 1):  # stopped; all draws failed
        monkeypatch.setattr(search, "run", lambda experiments, runs, status=status: status)
        assert searched(experiment(tmp_path), runs) == (None, status)


def test_mistakes_are_told(tmp_path: Path) -> None:
    own = experiment(tmp_path)
    assert own.tuning is not None
    runs = RunOptions("", tmp_path, [999, 1000], (), [], 1, dry_run=True)
    with pytest.raises(
        ConfigurationError, match="seeds of a search must be below 1000, got 1000: its tests have 1000 more each"
    ):
        searched(own, runs)
    with pytest.raises(ConfigurationError, match=r"must name what Prox draws, got FedAvg$"):
        in_draws(replace(own, tuning=replace(own.tuning, method={"FedAvg": {}})), [1])
    with pytest.raises(ConfigurationError, match=r"--rule adds a row to experiments whose methods are tuned, got x"):
        with_rule(replace(own, id="x", tuning=None), "my_rules.Clipping", [])
    with pytest.raises(ConfigurationError, match=r"--grid must be ARGUMENT=VALUES, got c: c=0.5,1"):
        with_rule(own, "my_rules.Clipping", ["c"])


def test_a_rule_of_ones_own_is_a_row(tmp_path: Path) -> None:
    added = with_rule(experiment(tmp_path), "my_rules.Clipping", ["c=0.5,1", "d={log: [0.1, 10]}"])
    draws = in_draws(added, [1])
    own = draws.cells[-12:]
    assert [cell.labels["method"] for cell in own] == ["Clipping"] * 12
    assert own[0].options[:1] == ("--trainer.callbacks+=my_rules.Clipping",)
    words = [dict(part.split("=") for part in cell.labels["try"].split()) for cell in own]
    assert {word["callbacks.c"] for word in words} == {"0.5", "1"}
    assert len({word["callbacks.d"] for word in words}) == 12
    assert short_name("Clipping") == "Clipping"


def test_every_method_of_the_benchmark_can_be_read() -> None:
    """On the first problem that has the method: its last draw makes the callbacks, and validates on training images."""
    read = set[str]()
    for problem in SEARCHED:
        draws = in_draws(at_scale("full", problem), [1])
        for cell in draws.cells[11::12]:  # the last of each method
            method = cell.labels["method"]
            if method not in read:
                read.add(method)
                config = config_of([f"--config={draws.config}", *cell.options])
                assert config["data"]["init_args"]["validation_examples"] == 2000
                assert len(callbacks_of(config)) >= (1 if method.startswith("FedAvg") else 2)
                assert config["trainer"]["max_epochs"] > 1
    assert len(read) >= 30


@pytest.mark.parametrize(
    ("more", "trained"),
    [
        ([], ["Clipping"]),
        (["--seeds=3"], ["Clipping"]),
        (["--first_seed=900"], ["FedAvg", "Clipping"]),  # the package has no such search
        (["--trainer.max_epochs=2"], ["FedAvg", "Clipping"]),  # nor runs with other options
        (["--scale=full"], ["FedAvg", "Clipping"]),  # nor at that scale
    ],
)
def test_quick_trains_fedavg_only_where_the_package_has_no_results(
    more: list[str], trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    subsets: list[Sequence[str]] = []
    monkeypatch.setattr(commands, "compare_methods", lambda experiment, runs, rule: subsets.append(runs.subset) or 0)
    command(["reproduce", "benchmark", "--quick", "--rule=my_rules.Clipping", *more])
    assert subsets == [[f"method={','.join(trained)}"]]


@pytest.mark.slow
def test_a_rule_of_ones_own_is_tuned_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On drawn images in place of Fashion-MNIST: draws, finals, tests and a table; then nothing is trained again."""
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
    line = [
        "reproduce",
        "--quick",
        "--seeds=1",
        "--rule",
        "fl_lightning.callbacks.NormClipping",
        "--grid",
        "threshold=0.5,1",
    ]
    assert command([*line, *options]) == 0
    told = capsys.readouterr().out
    assert "24 runs; starting" in told
    assert "8 runs; starting" in told
    assert "4 runs; starting" in told
    table = told[told.rindex("benchmark/label-skew:") :]
    assert table.index("FedAvg ") < table.index("× 1.0") < table.index("NormClipping")  # FedAvg's row stands first
    assert re.search(r"NormClipping: [+−]\d+\.\d points over FedAvg, [+−]\d+\.\d at twice the rounds\n", table)
    assert re.search(r"label-skew, 1 search; p –.*\n.*\n  search 1: optimizer\.lr=\S+ \(0\.\d\d\)", table)
    assert re.search(r" callbacks\.threshold=(0\.5|1)\n", table), "a list has no places"
    assert command([*line, *options]) == 0
    again = capsys.readouterr().out
    assert "starting" not in again
    assert again[again.rindex("benchmark/label-skew:") :] == table


def test_failed_draws_leave_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digits have too few images for the validation of the searches: nothing is tested, and the exit status is 1."""
    line = [
        "reproduce",
        "--quick",
        "--seeds=1",
        "--subset",
        "method=FedAvg",
        "--data=Digits",
        "--data.train_examples=600",
    ]
    assert command([*line, "--data.test_examples=200", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert told.count("expected validation_examples of at most 1442") == 24  # at once, and at the end
