"""The ledger: findings by scale, Holm's correction over a paper, reasons for claims that are not tested, the page.

With three seeds t has two degrees of freedom, and then a two-sided p value is 1 - t / √(2 + t²).
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lib.command import TINY, run
from matplotlib.image import imread

import fl_lightning.reproduce.ledger.findings
from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.experiments.grid import grid
from fl_lightning.reproduce.ledger.findings import Entry, apart, chance, ledger, rows, summary, where
from fl_lightning.reproduce.outcome.claims import paper_effect
from fl_lightning.reproduce.outcome.gate import FELL
from fl_lightning.reproduce.outcome.numbers import read

CONFIG = f"""{TINY}
grid:
  alpha:
    0.1: {{data.partition.alpha: 0.1}}
    1.0: {{data.partition.alpha: 1.0}}
  method: {{A: {{}}, B: {{model.local_epochs: 2}}}}
scale:
  small: {{note: a hundred images, rounds: 1, options: {{}}, axes: {{alpha: [0.1]}}}}
"""
ROWS = tuple(
    {"alpha": alpha, "method": method, "top1": value}
    for alpha, method, value in [(0.1, "A", 50.0), (0.1, "B", 53.0), (1.0, "A", 60.0), (1.0, "B", 61.0)]
)
A, B = {"method": "A"}, {"method": "B"}
CLAIMS = (
    Claim("B beats A at 0.1.", B, A, at={"alpha": 0.1}),
    Claim("A beats B at 0.1.", A, B, at={"alpha": 0.1}),
    Claim("B beats A at 1.", B, A, at={"alpha": 1.0}),
)


@pytest.fixture(autouse=True)
def _papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(CONFIG)
    papers = {
        id: Experiment(
            id, id, "accuracy", "It works.", ROWS, "own.yaml", ("top1",), claims, cells=tuple(grid("own.yaml"))
        )
        for id, claims in {"one/table-1": CLAIMS, "one/table-2": CLAIMS[:1], "two/fig-1": CLAIMS[2:]}.items()
    }
    monkeypatch.setattr(fl_lightning.reproduce.ledger.findings, "experiments", lambda: papers)


def write(place: str, gains: dict[float, Sequence[float]], records: bool = True, **more: str) -> None:
    """Write a results file: B's gains over A by alpha, for seeds 1, 2, …, and what the gate asks, if it ``records``."""
    Path("out", place).mkdir(parents=True)
    gate = {FELL: 0.0} if records else {}
    found = [
        {"alpha": alpha, "method": method, "round": 4, "seed": seed, "top1": 50 + gain * (method == "B")} | gate | more
        for alpha, each in gains.items()
        for seed, gain in enumerate(each, 1)
        for method in "AB"
    ]
    pd.DataFrame(found).to_csv(Path("out", place, "results.csv"), index=False)


def entries() -> list[Entry]:
    return ledger(Path("out"))


def test_findings_at_every_scale() -> None:
    """2.9, 3 and 3.1 are above half of the paper's 3 and of its -3; -3 and 0 are not, and one cell is not there."""
    write("small/one/table-1", {0.1: [2.9, 3, 3.1]})
    write("one/table-1", {0.1: [-3.1, -3, -2.9], 1.0: [0, 1, -1]})
    first, second, third, *_ = entries()
    small, full = first.findings["small"], first.findings["full"]
    assert (small.effect, small.half_width) == pytest.approx((3, 4.302653 * 0.1 / math.sqrt(3)), rel=1e-6)
    assert (small.verdict, small.paper, small.seeds) == ("holds on the stand-in", 3.0, 3)
    assert (full.verdict, second.findings["full"].verdict) == ("opposite", "holds")
    assert third.findings["small"].verdict == "not run", "its cells are left out at this scale"
    assert third.findings["full"].p == 1, "0, 1 and -1 have mean 0"


@pytest.mark.parametrize(
    ("full", "small", "scale"),
    [
        ([0, 1, -1], [3, 3, 3], "full"),  # tried is enough, though undecided
        ([0, 1], [3, 3, 3], "small"),
        ([-48, -49, -50], [3, 3, 3], "small"),  # B is at chance
        ([-48, -49, -50], [-48, -49, -50], "full"),
        ([0, 1], [-48, -49, -50], "small"),
        ([0, 1], None, "full"),
        (None, [3, 3, 3], "small"),
    ],
)
def test_a_claim_counts_at_the_largest_scale_at_which_it_is_tested(
    full: list[float] | None, small: list[float] | None, scale: str
) -> None:
    for place, gains in {"two/fig-1": full, "small/two/fig-1": small}.items():
        if gains:
            write(place, {1.0: gains})
    *_, other = entries()
    assert other.scale == scale
    assert other.best == other.findings[scale]


def test_stars_survive_holm_over_the_tested_claims_of_a_paper() -> None:
    """Each claim counts once, at its largest scale: three of paper one are tested, and one of paper two.

    3 ± 0.4 has t² = 168.75 against zero: p = 0.0059, over all looks 0.035, times 2 too much. 3 ± 0.01 survives.
    """
    write("one/table-1", {0.1: [2.6, 3, 3.4]})
    write("small/one/table-1", {0.1: [2.9, 3, 3.1]})
    write("one/table-2", {0.1: [2.99, 3, 3.01]})
    write("two/fig-1", {1.0: [2.7, 3, 3.3]})
    first, second, third, fourth, other = entries()
    assert [each.best.verdict for each in (first, second, third, fourth, other)] == [
        *("open", "opposite", "not run", "holds", "holds")
    ]
    assert second.best.p == pytest.approx(6 * (1 - math.sqrt(168.75 / 170.75)))
    assert [each.best.starred for each in (first, second, third, fourth, other)] == [False] * 3 + [True] * 2
    assert not first.findings["small"].starred
    assert apart(entries()).counts() == {"setting": [2, 0, 1, 0, 0, 1], "stand-in": [0] * 4, "not run": [1]}


def test_the_two_ledgers_are_corrected_apart() -> None:
    """3 ± 0.4 has p = 0.0059 against half of 3, over all looks 0.035, as 2 ± 0.4 against half of 1.

    On the stand-in, where three claims are tested, that is times 2 too much; alone at the paper's setting it is not.
    """
    Path("own.yaml").write_text(CONFIG.replace("axes: {alpha: [0.1]}", "axes: {}"))
    write("one/table-2", {0.1: [2.8, 3, 3.2]})
    write("small/one/table-1", {0.1: [2.8, 3, 3.2], 1.0: [1.8, 2, 2.2]})
    first, second, third, fourth, _ = entries()
    assert [each.best.p for each in (first, third, fourth)] == pytest.approx([6 * (1 - math.sqrt(168.75 / 170.75))] * 3)
    assert [each.best.verdict for each in (first, second, third, fourth)] == [
        *("holds on the stand-in", "not on the stand-in", "holds on the stand-in", "holds")
    ]
    assert [each.best.starred for each in (first, second, third, fourth)] == [False, True, False, True]
    at_the_setting, on_stand_ins = chance(entries()).split(" On stand-ins ")
    assert at_the_setting.startswith("At the paper's setting 1 of 1 tested claims are decided; at most 0.0 verdicts")
    assert on_stand_ins.startswith("3 of 3 tested claims are decided; at most 0.1 verdicts (4.9% of the tested)")
    assert at_the_setting.endswith("leaves 1 (a star).")
    assert on_stand_ins.endswith("leaves 1 (a star).")


@pytest.mark.parametrize(
    ("options", "full", "verdict", "why"),
    [
        ("{}", [], "not on the stand-in", ""),
        ("{}", [-1], "not on the stand-in", ""),
        ("{}", [1], "withheld", "+1 at the paper's setting (1 cell, 1 seed)"),
        ("{model.client.optimizer.lr: 0.3}", [], "withheld", "opposite with steps that are not the paper's, rate ×3"),
        ("{model.client.optimizer.lr: 0.1}", [], "not on the stand-in", ""),
    ],
)
def test_that_an_effect_is_not_there_is_withheld(options: str, full: list[float], verdict: str, why: str) -> None:
    """At another learning rate, or where a cell at the paper's setting has the other sign; what holds is not."""
    Path("own.yaml").write_text(CONFIG.replace("options: {}", f"options: {options}"))
    write("small/one/table-1", {0.1: [-2.9, -3, -3.1]})
    if full:
        write("one/table-1", {0.1: full})
    first, second, *_ = entries()
    assert (first.best.verdict, first.best.why) == (verdict, why)
    assert first.best.p == second.best.p, "it counts in the correction all the same"
    assert second.best.verdict == "holds on the stand-in"


def test_where_a_claim_was_run() -> None:
    write("small/one/table-1", {0.1: [2.9, 3, 3.1]})
    write("one/table-2", {0.1: [1.0]})
    first, _, third, fourth, _ = entries()
    assert where(first, "small") == "stand-in, 3 seeds: Digits, TwoNN, 1 of 2 rounds"
    assert where(fourth, "full") == "paper's setting, 1 seed"
    assert where(third, "small") == "–"
    over_both = dataclasses.replace(fourth, claim=dataclasses.replace(fourth.claim, at={}))
    assert where(over_both, "full") == "paper's setting, 1 seed, 1 of 2 cells"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{model.clients_at_once: 2, trainer.check_val_every_n_epoch: 2}", None),
        (
            "{data: {class_path: MNIST}, data.resize: 8, data.train_examples: 4000}",
            "4,000 images of MNIST at 8×8, TwoNN",
        ),
        ("{model.client.network: {class_path: MultilayerPerceptron}}", "Digits, perceptron"),
        ("{data.num_clients: 2, model.client.optimizer.lr: 0.05}", "Digits, TwoNN, 2 of 4 clients, rate ×0.5"),
        ("{data.batch_size: 8}", "Digits, TwoNN"),
    ],
)
def test_a_scale_is_a_stand_in_if_a_setting_that_changes_results_differs(options: str, words: str | None) -> None:
    """Its words are those of the cells that a claim is about; nobody lists which scales are stand-ins."""
    config = CONFIG.replace("options: {}", f"options: {options}").replace("rounds: 1", "rounds: 2")
    Path("own.yaml").write_text(config)
    write("small/one/table-1", {0.1: [2.9, 3, 3.1]})
    finding = entries()[0].findings["small"]
    assert (str(finding.stand_in) if finding.stand_in else None) == words
    assert finding.verdict == ("holds" if words is None else "holds on the stand-in")


def test_a_stand_in_of_several_cells_names_what_each_has() -> None:
    axes = "axes: {alpha: {0.1: {model.client.optimizer.lr: 0.3}, 1.0: {data: {class_path: MNIST}}}}"
    Path("own.yaml").write_text(CONFIG.replace("axes: {alpha: [0.1]}", axes))
    write("small/one/table-1", {0.1: [2.9, 3, 3.1], 1.0: [-2, -2.1, -2.2]})
    first, _, third, *_ = entries()
    assert str(first.best.stand_in) == "Digits, TwoNN, 1 of 2 rounds, rate ×3"
    assert str(third.best.stand_in) == "MNIST, TwoNN, 1 of 2 rounds"
    assert third.best.verdict == "not on the stand-in", "this claim's own cells have the paper's rate"


def test_why_a_claim_is_not_tested() -> None:
    write("one/table-1", {0.1: [2, 3]})
    write("one/table-2", {0.1: [2, 3, 4]}, changed="model.local_epochs 2")
    write("small/two/fig-1", {1.0: [-48, -49, -50]})
    first, *_, fourth, other = entries()
    assert (first.best.verdict, first.best.needed) == ("open", 3)
    assert fourth.best.why == "run with other settings: model.local_epochs 2"
    assert other.findings["full"].why == "no run is finished"
    assert [each.best.paper for each in (first, fourth)] == [3.0, 3.0], "the paper's effect is known all the same"
    assert rows(other)[0][2] == "withheld: B is at 0 % with seed 3, chance at 10 %"
    own = dataclasses.replace(other, experiment=dataclasses.replace(other.experiment, rows=()))
    assert summary([first, other, own]) == summary([first, other]), "claims of our own do not count"
    words = " ".join(summary([first, other]).split())
    assert "(its data set, network, clients, rounds and rates) 1 of 2 claims are tested: holds 0, too small 0" in words
    assert "1 were run: holds on the stand-in 0, not on the stand-in 0, withheld 1, open 0. They speak of" in words
    assert "0 have a perceptron for the paper's network, 0 another learning rate, 0 another data set" in words
    assert words.endswith("- **Not run**: 0.")


def test_an_effect_that_the_paper_states_in_words() -> None:
    """It stands where the tables do not print both sides."""
    claim = dataclasses.replace(CLAIMS[0], stated=6.5)
    results = pd.DataFrame({"alpha": 0.1, "method": ["A", "B"], "round": 4, "top1": [math.nan, 53.0], "seed": 0})
    assert paper_effect(claim, results, 0) == 6.5
    assert paper_effect(claim, results.fillna(50), 0) == 3


def blue(path: str) -> int:
    """Count a picture's pixels in the colour of claims that hold on a stand-in."""
    return int((np.abs(imread(path)[..., :3] - (0x56 / 255, 0xB4 / 255, 0xE9 / 255)).max(axis=-1) < 0.02).sum())


def test_the_command_writes_page_and_pictures() -> None:
    """Each row tells where it was run, and how many of the cells; a page for each paper has all numbers."""
    write("small/one/table-1", {0.1: [2.9, 3, 3.1]})
    write("one/table-1", {0.1: [2.0]})
    write("one/table-2", {0.1: [2.0, 3.0], 1.0: [1.0, 2.0]}, records=False)
    Path("page").mkdir()
    Path("page/ledger.yaml").write_text(
        "one: {verdicts: {setting: [0, 0, 0, 0, 0, 1], stand-in: [1, 1, 0, 0], not run: [1]}, believe: B leads.}\n"
        "two: {verdicts: {setting: [1, 0, 0, 0, 0, 0], stand-in: [0, 0, 0, 0], not run: [0]}, believe: B leads.}"
    )
    result = run("reproduce", "--ledger", "page/ledger.md", "--out", "out")
    assert result.status == 0, result.err
    assert not Path("page/ledger-two.png").exists(), "no claim of it is tested"
    assert "1 of 5 claims are tested: holds 0" in " ".join(result.out.split())
    text = Path("page/ledger.md").read_text()
    for words in (
        "| [one](#one) | 4 | 1: open 1 | 2: holds on the stand-in 1, not on the stand-in 1 | 1 | B leads. |",
        "| [two](#two) | 1 | 0 | 0 | 1 |  |",  # the sentence was written for other verdicts
        "| all papers | 5 | 1: open 1 | 2: holds on the stand-in 1, not on the stand-in 1 | 2 |  |",
        "| holds on the stand-in* | B beats A at 0.1. | +3 ± 0.25 | +3 | "
        "stand-in, 3 seeds: Digits, TwoNN, 1 of 2 rounds | [table-1](ledger-one.md#table-1) |",
        "| open | B beats A at 0.1. | +2.5 ± 6.4 | +3 | paper's setting, 2 seeds | [table-2](ledger-one.md#table-2) |",
        "| not run: no run is finished | B beats A at 1. | – | +1 | – | [fig-1](ledger-two.md#fig-1) |",
        "beside the paper's](ledger-one.png)\n",
    ):
        assert words in text
    order = [
        text.index(f"\n| {verdict}")
        for verdict in ("open | B", "holds on the stand-in* | B", "not on the stand-in* | A", "not run:")
    ]
    assert order == sorted(order)
    numbers = Path("page/ledger-one.md").read_text()
    for words in (
        "| B beats A at 0.1. | stand-in, 3 seeds: Digits, TwoNN, 1 of 2 rounds | "
        "holds on the stand-in* | +3 ± 0.25 | +3 | points | 3 | 0.0089 | – |",
        "| B beats A at 0.1. | paper's setting, 1 seed | open | +2 | +3 | points | 1 | – | 3 |",
        "not run: full: no seed has runs to compare: B against A; small: no seed has runs to compare: B against A",
        "**On a stand-in** (`--scale small`): a hundred images.\n",
        "| 0.1 | B | 3 | 53.00 ± 0.25 | 53.00 | Digits, TwoNN, 1 of 2 rounds |\n",
        "**At the paper's setting.** Not recorded, and so not judged: the fall of FedAvg's training loss",
        "| 0.1 | B | 1 | 52.00 | 53.00 | −1.00 |\n",
    ):
        assert words in numbers
    assert "No run is finished" not in Path("page/ledger-two.md").read_text()
    holding = blue("page/ledger-one.png")
    write("two/fig-1", {1.0: [-2.9, -3, -3.1]})
    assert run("reproduce", "--ledger", "page/ledger.md", "--out", "out").status == 0
    legend = blue("page/ledger-two.png")
    assert holding > 1.5 * legend > 0, "a dot and its interval, and the legend's dot, against the legend's dot alone"


def test_a_file_that_holds_no_results() -> None:
    Path("results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigurationError, match=r"expected columns round and seed in results\.csv, got a, b"):
        read(Path("results.csv"))


@pytest.mark.parametrize("option", ["ledger", "answers"])
def test_a_folder_is_no_page(option: str) -> None:
    """The pictures beside the page would have its name."""
    result = run("reproduce", f"--{option}", ".")
    assert result.status == 2
    assert result.err == f"fl-lightning: error: --{option} must be a file, got ., a folder: give {option}.md\n"
