"""Which method is better: paired tests against a computation by hand, costs of a target, problems, refusals."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.folders import config, write
from scipy import special

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.compared.comparison import Comparison, Difference, compare, default_metric
from fl_lightning.report.compared.experiments import Experiment
from fl_lightning.report.compared.methods import make_methods
from fl_lightning.report.compared.verdict import latex, numbers, table, texts, verdict
from fl_lightning.report.content import tables
from fl_lightning.runs.reader import read_runs

BASE = [[0.5, 0.6], [0.52, 0.64], [0.48, 0.62]]  # accuracies of two rounds by seed: means 0.55, 0.58 and 0.55
WIN = [[0.6, 0.7], [0.64, 0.72], [0.62, 0.7]]
TIE = [[0.52, 0.62], [0.51, 0.63], [0.5, 0.6]]


def compared(folder: Path, accuracies: dict[str, Sequence[Sequence[float]]], **options: Any) -> Comparison:
    """Compare rules, given each seed's accuracies by round; a round trains 2 s, and sends 1 kB."""
    for rule, seeds in accuracies.items():
        for seed, values in enumerate(seeds, 1):
            rounds = np.arange(1, len(values) + 1)
            metrics = {"val/top1": values, "val/loss": [1 - value for value in values], "bytes/total": 1000.0 * rounds}
            metrics["conflict/ratio"] = values
            each = dict.fromkeys(("seconds", "local", "server"), 0 * rounds + 1.0)
            rules = [] if rule == "FedAvg" else [rule]
            write(folder / rule / f"{seed}", metrics, config(*rules, seed=seed), each, {"rules": rules})
    (found,) = compare(make_methods(read_runs([folder]))[0], **options)
    return found


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Mean, half of the 95 % interval and p of the paired t test, from Student's formulas and the incomplete beta."""
    apart = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, free = sum(apart) / len(apart), len(apart) - 1
    error = math.sqrt(sum((each - mean) ** 2 for each in apart) / free / len(apart))
    p = float(special.betainc(free / 2, 0.5, free / (free + (mean / error) ** 2)))
    return mean, float(special.stdtrit(free, 0.975)) * error, p


def facts(difference: Difference) -> tuple[float, float, float]:
    return difference.mean, difference.half, difference.p


def said(comparison: Comparison) -> str:
    """The verdict with plain spaces."""
    return verdict(comparison).replace("\N{NO-BREAK SPACE}", " ")


def test_a_clear_win(tmp_path: Path) -> None:
    """Means over the rounds 0.65, 0.68, 0.66 against 0.55, 0.58, 0.55: differences 0.10, 0.10, 0.11.

    Mean 0.10333, deviation 0.0057735, error 0.0033333, t = 31 with two degrees of freedom: p = 0.00104. The interval is
    4.3027 · 0.0033333 = 0.01434 to each side. After the last round 0.70, 0.72, 0.70 against 0.60, 0.64, 0.62: 0.10,
    0.08 and 0.08, mean 0.086667, error 0.0066667, t = 13, p = 0.0059.
    """
    found = compared(tmp_path, {"FedAvg": BASE, "FedNova": WIN})
    mean, last = found.standings[1].apart["mean"], found.standings[1].apart["last"]
    assert facts(mean) == pytest.approx((0.103333, 0.014342, 0.00103896), rel=1e-4)
    assert facts(mean) == pytest.approx(paired([0.65, 0.68, 0.66], [0.55, 0.58, 0.55]))
    assert facts(last) == pytest.approx(paired([0.7, 0.72, 0.7], [0.6, 0.64, 0.62]))
    assert said(found) == (
        "FedNova beats FedAvg by +10.3 points of mean validation accuracy over the rounds (95 % interval +8.9 to "
        "+11.8, p = 0.001, 3 seeds); last-round difference +8.7 points (p = 0.0059)."
    )


def test_a_tie(tmp_path: Path) -> None:
    """Differences 0.02, -0.01, 0 of the means: mean 0.0033, deviation 0.0153, error 0.0088, t = 0.378, p = 0.74."""
    found = compared(tmp_path, {"FedAvg": BASE, "FedNova": TIE})
    assert facts(found.standings[1].apart["mean"]) == pytest.approx((0.0033333, 0.037946, 0.741801), rel=1e-4)
    assert said(found) == (
        "FedNova and FedAvg cannot be told apart in mean validation accuracy over the rounds: +0.3 points (95 % "
        "interval −3.5 to +4.1, p = 0.74, 3 seeds); last-round difference −0.3 points, not distinguishable (p = 0.81)."
    )


def test_a_loss_is_better_if_it_is_lower(tmp_path: Path) -> None:
    found = compared(tmp_path, {"FedAvg": BASE, "FedNova": WIN}, metric="val/loss")
    assert verdict(found).startswith("FedNova beats FedAvg by −0.103 of mean validation loss over the rounds")
    assert found.target == 0.38  # the mean of 0.4, 0.36 and 0.38


Recorded = dict[str, str | None]
UNKNOWN: list[tuple[str, Recorded | None]] = [  # metrics, and what their runs record
    ("val/bce", None),
    ("val/huber_loss", None),
    ("val/error", {}),
    ("val/mae", {"val/mae": None}),
    ("val/top1", {"val/top1": None}),
    ("held_out/bce_worst", {"val/bce": "lower"}),
]


def of_two(folder: Path, metric: str, better: Recorded | None, other: Recorded | None = None, **said: str) -> Any:
    """Compare FedAvg with FedNova, whose values are higher in every round of three seeds."""
    for rule, seeds in {"": BASE, "FedNova": WIN}.items():
        for seed, values in enumerate(seeds, 1):
            recorded = other if rule and other is not None else better
            write(folder / f"{rule}{seed}", {metric: values}, config(*[rule] * bool(rule), seed=seed), better=recorded)
    methods = make_methods(read_runs([folder], said))[0]  # type: ignore[arg-type]
    return compare(methods, metric)[0], methods


@pytest.mark.parametrize(("metric", "better"), UNKNOWN)
def test_no_verdict_on_a_metric_of_which_nobody_says_what_is_better(
    tmp_path: Path, metric: str, better: Recorded | None
) -> None:
    """Neither a word in a name decides, nor the catalogue where the module that logs the metric says nothing."""
    found, methods = of_two(tmp_path, metric, better)
    assert found.better is None
    assert math.isnan(found.target)
    assert re.match(
        f"No verdict: the runs do not say which values of {metric} are better: give --lower_is_better {metric} or "
        rf"--higher_is_better {metric}\. Differences to FedAvg in .*: FedNova \(\+.*, p = 0\.001\)",
        said(found),
    )
    written = texts([found])
    assert not any(word in written["comparison.md"] for word in ("beats", "falls short", "rounds to"))
    assert "rounds to" not in written["comparison.tex"]
    if metric.startswith("val/"):
        (ends,) = [tables.last_and_best(methods)]
        assert not any("best" in cell for cell in ends.head)
        assert f"do not say which values of {metric} are better" in ends.caption
        assert "too good to report" not in ends.caption
    shown = tables.index([Experiment("", methods, comparisons=[found])], ["#"])
    assert shown.rows[0][-3:] == ["–", "–", "–"]
    with pytest.raises(ConfigurationError, match=f"target: it is not known which values of {metric} are better than 0"):
        compare(methods, metric, target=0.5)


@pytest.mark.parametrize(
    ("metric", "better", "option", "expected"),
    [
        ("val/bce", {"val/bce": "lower"}, {}, "FedNova falls short of FedAvg by"),
        ("val/bce", {"val/bce": "higher"}, {}, "FedNova beats FedAvg by"),
        ("val/bce", {"val/bce": "higher"}, {"val/bce": "lower"}, "FedNova falls short of FedAvg by"),
        ("val/bce", None, {"val/bce": "lower"}, "FedNova falls short of FedAvg by"),
        ("val/top1", None, {}, "FedNova beats FedAvg by"),
        ("val/top1", {"val/top1": "lower"}, {}, "FedNova falls short of FedAvg by"),
        ("val/loss", None, {}, "FedNova falls short of FedAvg by"),
        ("val/f1/3", {"val/f1/*": "higher"}, {}, "FedNova beats FedAvg by"),
        ("val/bce/dataloader_idx_1", {"val/bce": "lower"}, {}, "FedNova falls short of FedAvg by"),
        ("held_out/top1_spread", None, {}, "FedNova is above FedAvg by"),
        ("conflict/ratio", None, {"conflict/ratio": "lower"}, "FedNova falls short of FedAvg by"),
    ],
)
def test_who_says_which_values_are_better(
    tmp_path: Path, metric: str, better: Recorded | None, option: dict[str, str], expected: str
) -> None:
    """The user, else what the run has recorded, else the catalogue, of names that the package itself logs."""
    assert verdict(of_two(tmp_path, metric, better, **option)[0]).startswith(expected)


def test_runs_that_say_different_things_say_nothing(tmp_path: Path) -> None:
    found, _ = of_two(tmp_path / "one", "val/x", {"val/x": "lower"}, {"val/x": "higher"})
    assert verdict(found).startswith("No verdict: the runs do not say")
    found, _ = of_two(tmp_path / "two", "val/x", {"val/x": "lower"}, {})
    assert verdict(found).startswith("No verdict: the runs do not say")


def test_the_best_round_has_the_lowest_value_if_that_is_better(tmp_path: Path) -> None:
    """Over the seeds: rounds of (0.5, 0.6), (0.52, 0.64), (0.48, 0.62): the least are 0.5, 0.52 and 0.48."""
    lowest = tables.last_and_best(of_two(tmp_path / "low", "val/x", {"val/x": "lower"})[1])
    highest = tables.last_and_best(of_two(tmp_path / "high", "val/x", {"val/x": "higher"})[1])
    assert lowest.head[-1] == highest.head[-1] == "val/x: best round"
    assert lowest.rows[0][-1].startswith("0.500")
    assert highest.rows[0][-1].startswith("0.620")


def test_more_conflict_is_neither_better_nor_worse(tmp_path: Path) -> None:
    found = compared(tmp_path / "two", {"FedAvg": BASE, "FedNova": WIN}, metric="conflict/ratio")
    assert verdict(found).startswith("FedNova is above FedAvg by +10.3 points of mean conflict ratio over the rounds")
    lower = [[0.3, 0.4], [0.34, 0.42], [0.32, 0.4]]
    found = compared(tmp_path / "three", {"FedAvg": BASE, "FedNova": WIN, "FedProx": lower}, metric="conflict/ratio")
    expected = r"FedNova \(.*\) is above FedAvg in .*; FedProx \(.*\) is below FedAvg \(3 seeds"
    assert re.match(expected, verdict(found))


@pytest.mark.parametrize(("seeds", "few"), [(1, "1 seed is too few"), (2, "2 seeds are too few")])
def test_no_verdict_from_fewer_than_three_seeds(tmp_path: Path, seeds: int, few: str) -> None:
    found = compared(tmp_path, {"FedAvg": BASE[:seeds], "FedNova": WIN[:seeds]})
    assert verdict(found).startswith(f"No verdict: {few}, at least 3 are needed.")
    assert "FedNova +10" in verdict(found)
    assert " p " not in said(found)
    assert all("p\N{NO-BREAK SPACE}=" not in cell for row in table(found).rows for cell in row)


def test_no_verdict_without_a_common_seed(tmp_path: Path) -> None:
    write(tmp_path / "a", {"val/top1": [0.5]}, config(seed=1))
    write(tmp_path / "b", {"val/top1": [0.6]}, config("FedNova", seed=2))
    (found,) = compare(make_methods(read_runs([tmp_path]))[0])
    assert verdict(found) == "No verdict: no method has a seed in common with FedAvg."


def test_one_method_is_described(tmp_path: Path) -> None:
    found = compared(tmp_path, {"FedAvg": BASE})
    write(tmp_path / "other", {"train/loss": [9.0, 8.0], "val/mae": [3.0, 2.0]}, config())
    (other,) = compare(make_methods(read_runs([tmp_path / "other"]))[0])
    assert said(other).startswith("FedAvg ends with a val/mae of 2.0000; the mean over the rounds is 2.5000 ")
    assert said(found) == (
        "FedAvg ends with a validation accuracy of 62.0 ± 5.0 %; the mean over the rounds is 56.0 ± 4.3 % (3 seeds). "
        "Pairs of clients in conflict (mean over the rounds, → after correction): FedAvg 56.00 %."
    )


@pytest.mark.parametrize(("after", "corrected"), [([0.2, 0.1], " → 15.00 %"), ([0.5, 0.4], ""), (None, "")])
def test_one_run_tells_its_conflict_and_how_to_get_a_baseline(
    tmp_path: Path, after: list[float] | None, corrected: str
) -> None:
    """Ratios of 0.5 and 0.4, mean 0.45; after the correction 0.2 and 0.1, the same, or unknown."""
    metrics = {"val/top1": [0.5, 0.6], "conflict/ratio": [0.5, 0.4]}
    metrics |= {"conflict/ratio_after": after} if after else {}
    write(tmp_path / "run", metrics, config("GradientHarmonization", "ConflictMonitor"))
    (found,) = compare(make_methods(read_runs([tmp_path]))[0])
    assert said(found).partition("(1 seed). ")[2] == (
        "Pairs of clients in conflict (mean over the rounds, → after correction): GradientHarmonization 45.00 %"
        f"{corrected}.\nNo baseline: for one, give "
        "the same command with `--trainer.callbacks ConflictMonitor` in place of the rules."
    )


@pytest.mark.parametrize(
    ("metric", "last", "classes", "target"),
    [
        ("val/top1", 0.109, 10, math.nan),  # 0.10 is chance
        ("val/top1", 0.112, 10, 0.11),
        ("val/top3", 0.309, 10, math.nan),  # three of ten
        ("val/top3", 0.312, 10, 0.31),
        ("val/loss", 0.0121, 10, 0.013),  # easier to reach
        ("val/top1", 0.109, None, 0.1),  # unknown classes
    ],
)
def test_no_cost_of_an_accuracy_that_guessing_has(
    tmp_path: Path, metric: str, last: float, classes: int | None, target: float
) -> None:
    arrays = {"partition": {"sizes": [classes], "counts": np.ones((1, classes), int)}} if classes else {}
    write(tmp_path / "run", {metric: [last]}, config(), environment={"rules": []}, **arrays)
    methods = make_methods(read_runs([tmp_path]))[0]
    (found,) = compare(methods)
    assert found.target == pytest.approx(target, nan_ok=True)
    assert any(name.startswith("rounds to") for name in table(found).head) == (not math.isnan(target))
    assert "nan" not in " ".join(texts([found]).values())
    (chosen,) = compare(methods, target=0.05)
    assert chosen.target == 0.05


def test_several_methods_are_corrected_by_holm(tmp_path: Path) -> None:
    """The smaller of two p values is doubled. FedFV has two seeds, and is not tested."""
    found = compared(tmp_path, {"FedAvg": BASE, "FedNova": WIN, "FedMGDA": TIE, "FedFV": WIN[:2]})
    p = {each.method.name: facts(each.apart["mean"])[2] for each in found.others}
    assert p["FedNova"] == pytest.approx(2 * 0.00103896, rel=1e-4)
    assert p["FedMGDA"] == pytest.approx(0.741801, rel=1e-4)
    assert math.isnan(p["FedFV"])
    text = said(found)
    assert text.startswith(
        "FedNova (+10.3 points, p = 0.0021) beats FedAvg in mean validation accuracy over the rounds; "
    )
    assert "FedMGDA (+0.3 points, p = 0.74) cannot be told from FedAvg; FedFV has too few seeds" in text
    assert "p values corrected for 2 comparisons by Holm's method" in text
    assert text.endswith("After the last round, FedNova (+8.7 points, p = 0.012) can be told from FedAvg.")


def test_rounds_that_one_run_lacks_are_not_compared(tmp_path: Path) -> None:
    """A run that stopped after round 1 is compared by round 1: 0.6 - 0.5."""
    found = compared(tmp_path, {"FedAvg": [[0.5, 0.9]], "FedNova": [[0.6]]})
    assert facts(found.standings[1].apart["last"])[0] == pytest.approx(0.1)
    assert facts(found.standings[1].apart["mean"])[0] == pytest.approx(0.1)


def test_the_costs_of_a_target(tmp_path: Path) -> None:
    """0.62 is reached by FedAvg's seeds never, in round 2 and in round 2, by FedNova's in rounds 2, 1 and 1.

    A round costs 2 s and 1 kB. With a target of 0.65, no seed of FedAvg gets there.
    """
    runs = {"FedAvg": BASE, "FedNova": WIN}
    found = compared(tmp_path / "a", runs, target=0.62)
    fedavg, fednova = found.standings
    assert (fedavg.costs, fedavg.reached) == ({"rounds": 2, "bytes": 2000, "seconds": 4}, 2)
    assert (fednova.costs, fednova.reached) == ({"rounds": 1, "bytes": 1000, "seconds": 2}, 3)
    rows = [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row[-3:]] for row in table(found).rows]
    assert rows == [["2 (2 of 3 seeds)", "2.0 kB", "4 s"], ["1", "1.0 kB", "2 s"]]
    fedavg = compared(tmp_path / "b", runs, target=0.65).standings[0]
    assert (fedavg.costs["rounds"], fedavg.reached) == (math.inf, 0)


def test_each_problem_has_a_comparison(tmp_path: Path) -> None:
    """Two rules on two partitions are two comparisons; two partitions alone are compared with each other."""
    for alpha in (0.1, 10.0):
        for rules in ([], ["FedNova"]):
            folder = tmp_path / str(alpha) / (rules or ["FedAvg"])[0]
            write(folder, {"val/top1": [0.5]}, config(*rules, alpha=alpha), environment={"rules": rules})
    both = compare(make_methods(read_runs([tmp_path]))[0])
    assert [(each.problem, [s.method.short for s in each.standings]) for each in both] == [
        (problem, ["FedAvg", "FedNova"]) for problem in ("alpha=0.1", "alpha=10.0")
    ]
    assert verdict(both[0]).startswith("alpha=0.1: No verdict")
    (one,) = compare(make_methods(read_runs([tmp_path / "0.1" / "FedAvg", tmp_path / "10.0" / "FedAvg"]))[0])
    assert [each.method.short for each in one.standings] == ["alpha=0.1", "alpha=10.0"]


def test_the_baseline_can_be_chosen(tmp_path: Path) -> None:
    found = compared(tmp_path, {"FedAvg": BASE, "FedNova": BASE}, baseline="FedNova")
    assert [each.method.name for each in found.others] == ["FedAvg"]
    assert facts(found.standings[0].apart["mean"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"baseline": "GH"}, "baseline must be the name of a method (FedAvg), got GH"),
        ({"metric": "val/topl"}, "metric must be one that the runs have, got val/topl: did you mean val/top1?"),
        ({"metric": "x"}, "metric must be one that the runs have, got x: they have val/top1, val/loss, "),
    ],
)
def test_names_that_do_not_exist_are_refused(tmp_path: Path, option: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        compared(tmp_path, {"FedAvg": BASE}, **option)
    assert str(raised.value).startswith(error)


@pytest.mark.parametrize(
    ("logged", "chosen"),
    [
        (["train/loss", "val/mae", "val/loss", "val/top1"], "val/top1"),
        (["val/acc", "val/loss", "val/top3"], "val/top3"),
        (["train/loss", "val/acc", "val/loss"], "val/loss"),
        (["train/loss", "bytes/total", "val/rmse", "val/mae", "val/iou/0"], "val/mae"),
        (["mine", "bytes/total", "train/loss"], "train/loss"),
        (["mine", "my/own"], "mine"),
    ],
)
def test_the_default_metric(logged: list[str], chosen: str) -> None:
    assert default_metric(logged) == chosen


def test_the_table_in_other_formats(tmp_path: Path) -> None:
    """Without a formula, LaTeX would print < as an upside-down !."""
    found = compared(tmp_path, {"FedAvg": BASE, "FedNova": WIN})
    assert numbers([found]).set_index("method").loc["FedNova", "mean_p"] == pytest.approx(0.00103896, rel=1e-4)
    written = texts([found])
    last = r"\begin{tabular}[t]{@{}r@{}}+8.7 $\pm$ 2.9\\p~=~0.0059\end{tabular}"
    assert rf"FedNova & 70.7 $\pm$ 2.9 & {last} & 66.3 $\pm$ 3.8 & " in written["comparison.tex"]
    assert r"& \begin{tabular}[b]{@{}r@{}}mean over\\rounds, \%\end{tabular} &" in written["comparison.tex"]
    plain = written["comparison.md"].replace("\N{NO-BREAK SPACE}", " ")
    assert "| FedNova | 70.7 ± 2.9 | +8.7 ± 2.9, p = 0.0059 | 66.3 ± 3.8 |" in plain
    assert table(found).exports == written
    p = "p\N{NO-BREAK SPACE}<\N{NO-BREAK SPACE}0.001"
    text = latex(["method", "last − a & b, points"], [["x_1 (2)", f"+1.0 ± 0.5, {p}"]])
    assert r"x\_1 (2) & \begin{tabular}[t]{@{}r@{}}+1.0 $\pm$ 0.5\\p~$<$~0.001\end{tabular} \\" in text
    assert r"method & \begin{tabular}[b]{@{}r@{}}last $-$ a \&\\b, points\end{tabular} \\" in text


def test_a_sentence_names_at_most_four_methods(tmp_path: Path) -> None:
    rules = ("FedNova", "FedMGDA", "FedFV", "PCGrad", "CAGrad", "Krum")
    found = compared(tmp_path, {"FedAvg": BASE} | dict.fromkeys(rules, BASE))
    assert "PCGrad" not in said(found)
    assert "and 3 more cannot be told from FedAvg (3 seeds, p values corrected for 6 comparisons" in said(found)
