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
from fl_lightning.reproduce.ledger.findings import Entry, chance, counts, ledger, rows, summary
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
    assert (small.verdict, small.paper, small.seeds) == ("holds", 3.0, 3)
    assert (full.verdict, second.findings["small"].verdict) == ("opposite", "opposite")
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
    assert counts(entries()) == {"holds": 2, "too small": 0, "opposite": 1, "scale": 0, "open": 1, "not run": 1}
    words = chance(entries())
    assert words.startswith("Of 4 tested claims, 3 are decided; at most 0.2 verdicts (4.9% of the tested) are expected")
    assert words.endswith("claims: 2.")


def test_why_a_claim_is_not_tested() -> None:
    write("one/table-1", {0.1: [2, 3]})
    write("one/table-2", {0.1: [2, 3, 4]}, changed="model.local_epochs 2")
    write("small/two/fig-1", {1.0: [-48, -49, -50]})
    first, *_, fourth, other = entries()
    assert (first.best.verdict, first.best.needed) == ("open", 3)
    assert fourth.best.why == "run with other settings: model.local_epochs 2"
    assert other.findings["full"].why == "no run is finished"
    assert [each.best.paper for each in (first, fourth)] == [3.0, 3.0], "the paper's effect is known all the same"
    assert rows(other)[0][2] == "scale: B is at 0 % with seed 3, chance at 10 %"
    own = dataclasses.replace(other, experiment=dataclasses.replace(other.experiment, rows=()))
    assert summary([first, other, own]) == summary([first, other]), "claims of our own do not count"
    assert summary([first, other]) == "Of 2 claims: holds 0, too small 0, opposite 0, scale 1, open 1, not run 0."


def test_an_effect_that_the_paper_states_in_words() -> None:
    """It stands where the tables do not print both sides."""
    claim = dataclasses.replace(CLAIMS[0], stated=6.5)
    results = pd.DataFrame({"alpha": 0.1, "method": ["A", "B"], "round": 4, "top1": [math.nan, 53.0], "seed": 0})
    assert paper_effect(claim, results, 0) == 6.5
    assert paper_effect(claim, results.fillna(50), 0) == 3


def blue(path: str) -> int:
    """Count a picture's pixels in the colour of claims that hold."""
    return int((np.abs(imread(path)[..., :3] - (0, 0x72 / 255, 0xB2 / 255)).max(axis=-1) < 0.02).sum())


def test_the_command_writes_page_and_pictures() -> None:
    """The page tells how much of the full scale was run, and what is smaller at another."""
    write("small/one/table-1", {0.1: [2.9, 3, 3.1]})
    write("one/table-1", {0.1: [2.0]})
    write("one/table-2", {0.1: [2.0, 3.0], 1.0: [1.0, 2.0]}, records=False)
    for table in ("small/one/table-1", "one/table-1", "one/table-2"):
        Path("out", table, "table.md").touch()
    Path("page").mkdir()
    Path("page/ledger.yaml").write_text(
        "one: {verdicts: [1, 0, 1, 0, 1, 1], believe: B leads.}\ntwo: {verdicts: [1, 0, 0, 0, 0, 0], believe: B leads.}"
    )
    result = run("reproduce", "--ledger", "page/ledger.md", "--out", "out")
    assert result.status == 0, result.err
    assert not Path("page/ledger-two.png").exists(), "no claim of it is tested"
    assert "Of 5 claims: holds 1, too small 0, opposite 1, scale 0, open 1, not run 2." in result.out
    text = Path("page/ledger.md").read_text()
    for words in (
        "| [one](#one) | B leads. | 1 | 0 | 1 | 0 | 1 | 1 |",
        "| [two](#two) |  | 0 | 0 | 0 | 0 | 0 | 1 |",  # the sentence was written for other verdicts
        "| holds* | B beats A at 0.1. | +3 ± 0.25 | +3 | 3 | small | [table-1](../out/small/one/table-1/table.md) |",
        "| not run: no run is finished | B beats A at 1. | – | +1 | – | full | fig-1 |",
        "| B beats A at 0.1. | small | holds* | +3 ± 0.25 | +3 | points | 3 | 0.0089 | – |",
        "| B beats A at 0.1. | full | open | +2 | +3 | points | 1 | – | 3 |",
        "Small scale: a hundred images. [Our table](../out/small/one/table-1/table.md).\n",
        "Small scale: a hundred images.\n",  # the other experiments have no table
        "Full scale. [2 of 4 cells, 1 seed](../out/one/table-1/table.md).\n",
        "Full scale. [Our table](../out/one/table-2/table.md). Not recorded, and so not judged: the fall of FedAvg's",
        "not run: full: no seed has runs to compare: B against A; small: no seed has runs to compare: B against A",
        "beside the paper's](ledger-one.png)\n",
    ):
        assert words in text
    order = [text.index(f"\n| {verdict}") for verdict in ("holds* | B", "opposite* | A", "open | B", "not run:")]
    assert order == sorted(order)
    holding = blue("page/ledger-one.png")
    write("two/fig-1", {1.0: [-2.9, -3, -3.1]})
    assert run("reproduce", "--ledger", "page/ledger.md", "--out", "out").status == 0
    legend = blue("page/ledger-two.png")
    assert holding > 2 * legend > 0, "a dot and its interval, and the legend's dot, against the legend's dot alone"


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
