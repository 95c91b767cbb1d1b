"""The page of answers: who beats FedAvg, in words and numbers, with a command, from results of two problems."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.read_config import config_of
from fl_lightning.reproduce.benchmark import problems
from fl_lightning.reproduce.benchmark.advice import command_of
from fl_lightning.reproduce.benchmark.compare import print_gains
from fl_lightning.reproduce.benchmark.page import write_answers
from fl_lightning.reproduce.benchmark.problems import Problem, results_of
from fl_lightning.reproduce.benchmark.search import TESTS, in_draws
from fl_lightning.reproduce.command import command
from fl_lightning.reproduce.experiments.papers import experiments, find
from fl_lightning.reproduce.run_options import RunOptions

GAINS = {  # over FedAvg, in points
    "label-skew": {"FedACG": 4.0, "FedDyn": 3.95, "FedAdam": 2.0, "FedGH": 1.9, "CAGrad": -2.0},
    "two-classes": {"FedACG": 0.0, "FedDyn": -0.1, "FedAdam": -0.2, "FedGH": -1.0, "CAGrad": 0.05},
}


def write_results(out: Path, seeds: Sequence[int] = range(1, 7), deviation: float = 0.2) -> None:
    """Write tests and finals of FedAvg and five methods on two problems; gains halve at twice the rounds."""
    draw = np.random.default_rng(0)
    for problem, by_method in GAINS.items():
        experiment = find(f"benchmark/{problem}")[0]
        cells = [cell for cell in in_draws(experiment, [1]).cells if "cosine" in cell.labels["try"]]
        names = {cell.labels["method"]: cell.labels["try"] for cell in cells}
        tests, finals = [], []
        for seed in seeds:
            level = draw.normal(70, 2)
            for method, gain in {"FedAvg": 0.0, **by_method}.items():
                labels = {"method": method, "try": names[method]}
                finals.append({**labels, "round": 40, "seed": seed, "top1": level + gain})
                for budget, count in TESTS.items():
                    noise = 0.0 if method == "FedAvg" else draw.normal(0, deviation)
                    top1 = level + gain / budget + noise
                    for test in range(1, count + 1):
                        row = {**labels, "budget": budget, "round": 40 * budget, "seed": 1000 * test + seed}
                        row |= {"top1": top1 + test / 10, "bytes/up": 1e6, "bytes/down": 1e6}
                        tests.append({**row, "conflict/ratio": 0.5, "conflict/ratio_after": 0.5 - gain / 100})
        for id, rows in ((f"benchmark/{problem}", tests), (f"benchmark-final/{problem}", finals)):
            (out / id).mkdir(parents=True)
            pd.DataFrame(rows).to_csv(out / id / "results.csv", index=False)


@pytest.fixture(autouse=True)
def _nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package comes without results."""
    monkeypatch.setattr(problems, "MEASURED", tmp_path / "measured")


def test_answers(tmp_path: Path) -> None:
    write_results(tmp_path)
    results = tmp_path / "benchmark" / "two-classes" / "results.csv"
    table = pd.read_csv(results)
    table[~(table["method"].eq("CAGrad") & table["seed"].eq(1002))].to_csv(results, index=False)  # a run that diverged

    page = tmp_path / "docs" / "answers.md"
    assert command(["reproduce", "--answers", str(page), "--out", str(tmp_path)]) == 0
    text = page.read_text()
    first = text[: text.index("A rule in bold")]
    rows = [line[2:-2].split(" | ") for line in first.splitlines() if line.startswith("| ") and " ± " in line]
    skew, classes = rows[:3], rows[3:]
    # FedDyn needs a vector for each client, and stands last; FedAdam is clearly below both; FedGH is not tested.
    assert [row[2] for row in skew] == ["**FedACG**", "**FedDyn**", "FedAdam"]
    assert skew[0][0] == "[label-skew](answers-label-skew.md), 6 searches"
    assert skew[0][3].startswith("+3.9")
    assert skew[0][3].endswith("\\*")
    assert skew[0][4].startswith("+2.1")
    assert [row[5] for row in skew] == ["", "a vector for each client", ""]
    assert {row[2] for row in classes} == {"CAGrad", "FedACG", "FedDyn"}
    assert re.search(
        r"2 of its \d\d problems\. .* fewer than three searches: .* few-participants, ", " ".join(first.split())
    )
    assert "among their 6 tests" in " ".join(text.split())
    advice = text[text.index("## If your clients") : text.index("## The gains of all")]
    assert "**FedACG**, which starts clients ahead of the global model" in advice
    assert "FedDyn cannot be told from it" in advice
    plain = (
        r"None is proved to, over 6 searches. FedAvg, its rate tuned, is the plain choice. The largest gain, that of "
    )
    assert re.search(plain + r"(\w+), may be chance: \S+ ± \S+, at twice the rounds .*\n\n.*\n```bash\n# \1\n", advice)
    line = next(line for line in advice.splitlines() if "fl-lightning fit" in line)
    assert "\n# FedAvg\nfl-lightning fit" in advice
    assert "--trainer.callbacks.lam=0." in line
    assert "--model.local_lr_scheduler=CosineAnnealingLR --model.local_lr_scheduler.T_max=ROUNDS" in line
    assert "| FedGH | +0.4 |" in text
    assert "| **+3.9** |" in text
    numbers = page.with_name("answers-two-classes.md").read_text()
    assert "CAGrad (5 of 6 searches)" in numbers
    rows = [row.split(" | ") for row in numbers.splitlines() if row.endswith(" |") and " → 0." in row]
    tested = [row[0].removeprefix("| ") for row in rows if row[3] != "–"]
    assert sorted(tested) == ["CAGrad (5 of 6 searches)", "FedACG", "FedDyn"]
    assert "`model.client.optimizer.lr` | 0.02 to 1.0, log | 72 |" in text, "six methods, six searches, two problems"
    assert "| FedACG: `lam` | 0.5 to 0.95, even | 12 |" in text
    assert "Of 72 choices between a constant rate and a cosine, 72 are a cosine." in " ".join(text.split())
    correlation = re.search(r"correlation of the two, over the rules, is (\S+)", text)
    assert correlation
    assert float(correlation[1]) > 0.9  # by construction
    halves = re.search(r"\| label-skew \| FedACG \+.*, FedAdam .*\* \| FedACG .*, FedAdam .*\* \| (\S+) \|", text)
    assert halves, "the same three are found twice"
    assert float(halves[1]) >= 0.8, "FedACG and FedDyn are alike, and so are FedAdam and FedGH"
    assert re.search(r"Of other shuffled tables, [\d,]+ of 10,000 have a star", text)
    assert page.with_suffix(".png").stat().st_size > 5_000


def test_where_nothing_is_clear_the_cheapest_that_seems_to_gain_is_named(tmp_path: Path) -> None:
    write_results(tmp_path, [1, 2, 3], deviation=0.8)
    write_answers(tmp_path, str(tmp_path / "answers.md"))
    text = (tmp_path / "answers.md").read_text()
    assert "**FedACG**" not in text
    tried = re.search(
        r"over 3 searches\. Worth a try, .*: FedACG, which [^.]+\. It costs no more\. .* was \+\d\.\d ± ", text
    )
    assert tried, "FedDyn gains as much, and needs a vector for each client"
    assert "\n# FedACG\nfl-lightning fit" in text[tried.end() :], "its command"


def test_the_worst_clients_are_told_where_they_were_measured(tmp_path: Path) -> None:
    write_results(tmp_path)
    results = tmp_path / "benchmark" / "two-classes" / "results.csv"
    table = pd.read_csv(results)
    table.assign(**{"personal/top1_worst": np.where(table["method"].eq("FedDyn"), 0.41, 0.52)}).to_csv(results)
    write_answers(tmp_path, str(tmp_path / "answers.md"))
    numbers = (tmp_path / "answers-two-classes.md").read_text()
    assert "| method | % | worst tenth, % | − FedAvg |" in numbers
    row = next(row for row in numbers.splitlines() if row.startswith("| FedDyn |"))
    assert row.split(" | ")[2] == "41.0"
    assert "worst tenth" not in (tmp_path / "answers-label-skew.md").read_text()


def test_the_command_can_be_read(tmp_path: Path) -> None:
    """The page's command, on a config and with a number of rounds of one's own."""
    write_results(tmp_path)
    write_answers(tmp_path, str(tmp_path / "answers.md"))
    lines = (tmp_path / "answers.md").read_text().splitlines()
    line = next(line for line in lines if line.startswith("fl-lightning fit") and "--trainer.callbacks.lam" in line)
    words = line.removeprefix("fl-lightning fit --config YOURS.yaml ").replace("ROUNDS", "7").split()
    config = config_of(["--config=digits_gh.yaml", "--trainer.callbacks=[]", *words])
    assert config["trainer"]["callbacks"][-1]["class_path"].endswith("FedACG")
    assert config["model"]["local_lr_scheduler"]["init_args"]["T_max"] == 7


def test_every_method_has_a_command_that_can_be_read() -> None:
    read = set()
    for experiment in experiments().values():
        if experiment.tuning is None:
            continue
        for cell in in_draws(experiment, [1]).cells:
            method = cell.labels["method"]
            if method not in read:
                read.add(method)
                tests = pd.DataFrame([{**cell.labels, "seed": 1001, "budget": 1, experiment.measures[0]: 1.0}])
                command = command_of(Problem(experiment, tests, tests), method)
                words = shlex.split(command.partition("YOURS.yaml")[2].replace("ROUNDS", "7"))
                assert config_of(["--config=digits_gh.yaml", *words])
                assert ("PersonalEvaluation" in words[0]) == experiment.measures[0].startswith("personal")
    assert len(read) > 40


def test_a_rule_whose_tests_all_failed_has_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path)
    runs = RunOptions("", tmp_path, [1], (), [], 1, dry_run=False)
    print_gains(find("benchmark/label-skew")[0], runs, "Clipping")
    assert capsys.readouterr().out == ""
    print_gains(find("benchmark/label-skew")[0], runs, "FedACG")
    assert "FedACG: +3.9 ± " in capsys.readouterr().out


def test_few_searches_answer_nothing(tmp_path: Path) -> None:
    write_results(tmp_path, [1, 2])
    with pytest.raises(ConfigurationError, match="no tuned experiment has three searches"):
        write_answers(tmp_path, str(tmp_path / "answers.md"))


def test_results_of_the_package_fill_in_for_methods_and_seeds_that_were_not_run(tmp_path: Path) -> None:
    write_results(tmp_path / "measured")
    write_results(tmp_path / "own", [1, 2, 3])
    problem = find("benchmark/label-skew")[0]
    file = tmp_path / "own" / problem.id / "results.csv"
    own = pd.read_csv(file)
    own[own["method"].isin(["FedAvg", "FedGH"])].assign(top1=1.0).to_csv(file, index=False)
    results = results_of(problem.id, tmp_path / "own")
    assert set(results["seed"] % 1000) == {1, 2, 3}
    assert set(results["method"]) == {"FedAvg", *GAINS["label-skew"]}
    assert set(results[results["top1"].eq(1.0)]["method"]) == {"FedAvg", "FedGH"}
    assert len(results) == 3 * 6 * 4
    own.assign(changed="trainer.max_epochs 2").to_csv(file, index=False)  # other runs than those of the package
    assert len(results_of(problem.id, tmp_path / "own")) == len(own)
    assert results_of(problem.id, tmp_path / "nowhere").empty
