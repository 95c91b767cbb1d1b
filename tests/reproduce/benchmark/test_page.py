"""The page of answers: who beats FedAvg, in words and numbers, from results of two problems."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.benchmark import problems
from fl_lightning.reproduce.benchmark.page import write_answers
from fl_lightning.reproduce.benchmark.problems import results_of
from fl_lightning.reproduce.benchmark.tuning import FRESH, in_tries
from fl_lightning.reproduce.command import command
from fl_lightning.reproduce.experiments.papers import find

GAINS = {  # over FedAvg, in points
    "label-skew": {"FedAvgM": 4.0, "FedAdam": 3.0, "FedProx": 0.0, "CAGrad": -2.0, "FedGH": 0.1, "PCGrad": -0.1},
    "two-classes": {"FedAvgM": 3.0, "FedAdam": 5.0, "FedProx": 0.1, "CAGrad": 0.0, "FedGH": 0.0, "PCGrad": -3.0},
}


def write_results(out: Path, seeds: Sequence[int] = range(1, 6), document: str = "benchmark", best: int = 6) -> None:
    """Write results of FedAvg and the ``best`` methods of each problem."""
    draw = np.random.default_rng(0)
    for problem, gains in GAINS.items():
        by_method = dict(sorted(gains.items(), key=lambda item: -item[1])[:best])
        rows = []
        for seed in seeds:
            level = draw.normal(70, 2)
            for place, (method, gain) in enumerate({"FedAvg": 0.0, **by_method}.items()):
                noise = 0.0 if method == "FedAvg" else draw.normal(0, 0.2)
                row = {"method": method, "round": 40, "seed": seed, "top1": level + gain + noise}
                row |= {"conflict/ratio": 0.5, "conflict/ratio_after": 0.5 - gain / 100, "bytes/total": 1e6}
                rows.append({**row, "seconds": 5.0 + place, "folder": ""})
        folder = out / document / problem
        folder.mkdir(parents=True)
        pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)


@pytest.fixture(autouse=True)
def _nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package comes without results."""
    monkeypatch.setattr(problems, "MEASURED", tmp_path / "measured")


def test_answers(tmp_path: Path) -> None:
    write_results(tmp_path)
    write_results(tmp_path, FRESH, "benchmark-confirmed", best=3)
    results = tmp_path / "benchmark" / "two-classes" / "results.csv"
    table = pd.read_csv(results)
    table[~(table["method"].eq("PCGrad") & table["seed"].eq(2))].to_csv(results, index=False)  # a run that diverged
    tries = in_tries(find("benchmark/label-skew")[0])
    folder = tmp_path / tries.id
    folder.mkdir(parents=True)
    rows = [{**cell.labels, "round": 40, "seed": 0, "top1": 50.0, "seconds": 36.0} for cell in tries.cells[:4]]
    pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)

    page = tmp_path / "docs" / "answers.md"
    assert command(["reproduce", "--answers", str(page), "--out", str(tmp_path)]) == 0
    text = page.read_text()
    first = text[: text.index("## If your clients")]
    assert "| [label-skew](#label-skew) |" in first
    assert "| **FedAvgM +4.0 ± 0.1** (1.2 × time, 1.0 × bytes); **FedAdam +3.0 ± 0.2** (1.4 " in first
    advice = text[text.index("## If your clients") : text.index("## Does a winner")]
    assert "**FedAvgM**, +" in advice
    assert "**FedAdam**, +" in advice
    assert " to FedAvgM." in advice  # FedAdam's row; FedAvgM itself is not compared with itself
    assert "or more no better than FedAvg: " in advice
    assert "CAGrad (1)" in advice
    assert "| FedAdam | +4.0 | 2 of 2 | **+2.9** | **+5.1** |" in text
    assert "2 of 2 | **−2.0** |" not in text
    assert "| **−2.0** |" in text
    assert "are above zero again" in text
    assert "| PCGrad (4 of 5 seeds) | " in text
    correlation = text[text.index("points over FedAvg* is ") :].split()[4]
    assert float(correlation) > 0.9  # by construction
    assert "| FedAvg | optimizer.lr 0.1, server_optimizer.lr 1.0 | 50.0 |" in text
    assert page.with_suffix(".png").stat().st_size > 10_000


def test_few_seeds_answer_nothing(tmp_path: Path) -> None:
    write_results(tmp_path, [1, 2])
    with pytest.raises(ConfigurationError, match="no tuned experiment has three seeds"):
        write_answers(tmp_path, str(tmp_path / "answers.md"))


def test_results_of_the_package_fill_in_for_methods_and_seeds_that_were_not_run(tmp_path: Path) -> None:
    write_results(tmp_path / "measured")
    write_results(tmp_path / "own", [1, 2, 3])
    problem = find("benchmark/label-skew")[0]
    file = tmp_path / "own" / problem.id / "results.csv"
    own = pd.read_csv(file)
    own[own["method"].isin(["FedAvg", "FedGH"])].assign(top1=1.0).to_csv(file, index=False)
    results = results_of(problem.id, tmp_path / "own")
    assert set(results["seed"]) == {1, 2, 3}
    assert set(results["method"]) == {"FedAvg", *GAINS["label-skew"]}
    assert set(results[results["top1"].eq(1.0)]["method"]) == {"FedAvg", "FedGH"}
    assert len(results) == 3 * 7
    own.assign(changed="trainer.max_epochs 2").to_csv(file, index=False)  # other runs than those of the package
    assert len(results_of(problem.id, tmp_path / "own")) == len(own)
    assert results_of(problem.id, tmp_path / "nowhere").empty
