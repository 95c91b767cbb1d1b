"""The ledger: findings by scale, Holm's correction over a paper, reasons for claims that are not tried, the page.

With three seeds t has two degrees of freedom, and then a two-sided p value is 1 - t / √(2 + t²).
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import TINY, run
from matplotlib.image import imread

import fl_lightning.reproduce.ledger.findings
from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.experiments.grid import grid
from fl_lightning.reproduce.ledger.findings import Entry, counts, ledger, read, rows, summary
from fl_lightning.reproduce.outcome.claims import paper_effect

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
    Claim("B beats A at 1.", B, A, at={"alpha": 1.0}, above=15),
)
P = 1 - math.sqrt(75 / 77)  # of 2, 2.5 and 3, whose mean is 2.5 and deviation 0.5: t² = 75


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


def write(place: str, gains: dict[float, Sequence[float]], **more: str) -> None:
    """Write a results file: B's gains over A by alpha, for seeds 1, 2, …"""
    Path("out", place).mkdir(parents=True)
    found = [
        {"alpha": alpha, "method": method, "round": 4, "seed": seed, "top1": 50 + gain * (method == "B")} | more
        for alpha, each in gains.items()
        for seed, gain in enumerate(each, 1)
        for method in "AB"
    ]
    pd.DataFrame(found).to_csv(Path("out", place, "results.csv"), index=False)


def entries() -> list[Entry]:
    return ledger(Path("out"))


def test_findings_at_every_scale() -> None:
    """Effects, intervals and p values by hand: 2, 2.5 and 3 have mean 2.5 and half width 4.303 · 0.5 / √3."""
    write("small/one/table-1", {0.1: [2, 2.5, 3]})
    write("one/table-1", {0.1: [-3, -2.5, -2], 1.0: [0, 1, -1]})
    first, second, third, *_ = entries()
    small, full = first.findings["small"], first.findings["full"]
    assert (small.effect, small.half_width) == pytest.approx((2.5, 4.302653 * 0.5 / math.sqrt(3)), rel=1e-6)
    assert (small.p, full.p) == pytest.approx((P, P))
    assert (small.against, full.against) == (False, True)
    assert (small.paper, small.seeds) == (3.0, 3)
    assert second.findings["small"].against, "the reversed claim is contradicted by the same numbers"
    assert third.findings["small"].why == "its cells are left out at this scale"
    assert third.findings["full"].p == 1, "0, 1 and -1 have mean 0"
    assert first.best is full, "the largest scale at which the claim is tried"


def test_seeds_needed_for_the_effect_of_the_paper() -> None:
    """The paper's effect is 3: as large as the deviation of 2, 5 and 8; a hundredth of a deviation of 300."""
    write("small/one/table-1", {0.1: [2, 5, 8]})
    write("one/table-1", {0.1: [0, 300, 600], 1.0: [1, 1, 1]})
    first, second, third, *_ = entries()
    assert first.findings["small"].needed == 10
    assert second.findings["small"].needed == 0, "the paper's effect is not in the claimed direction"
    assert third.findings["full"].needed == 0, "all seeds are equal"
    small, full = (row[-2] for row in sorted(rows(first), key=lambda row: row[1], reverse=True))
    assert (small, full) == ("10", "> 1000")


def test_p_values_are_corrected_over_the_tried_claims_of_a_paper_at_a_scale() -> None:
    """Three p values of one paper are multiplied by 3, 2 and 1; the other paper's only one stays."""
    write("small/one/table-1", {0.1: [2, 2.5, 3]})
    write("small/one/table-2", {0.1: [1, 1.01, 1.02]})
    write("two/fig-1", {1.0: [2, 2.5, 3]})
    first, second, third, fourth, other = entries()
    smallest = 1 - math.sqrt(1 - 2 / (2 + 3 * 101**2))  # mean 1.01, deviation 0.01: t² = 3 · 101²
    assert fourth.findings["small"].corrected == pytest.approx(3 * smallest)
    assert [each.findings["small"].corrected for each in (first, second)] == pytest.approx([2 * P, 2 * P])
    assert other.findings["full"].corrected == pytest.approx(P)
    assert math.isnan(third.findings["small"].corrected)
    verdicts = [each.best.verdict for each in (first, second, third, fourth, other)]
    assert verdicts == ["supported", "contradicted", "not tried", "supported", "supported"]
    assert 2 * P < 0.05 < 4 * P, "otherwise the correction would not matter here"
    assert counts(entries()) == {"supported": 3, "contradicted": 1, "undecided": 0, "not tried": 1}


def test_why_a_claim_is_not_tried() -> None:
    write("one/table-1", {0.1: [2, 3]})
    write("one/table-2", {0.1: [2, 3, 4]}, changed="model.local_epochs 2")
    write("small/two/fig-1", {1.0: [-48, -49, -50]})
    first, *_, fourth, other = entries()
    assert first.findings["full"].why == "fewer than 3 seeds"
    assert fourth.findings["full"].why == "run with other settings: model.local_epochs 2"
    assert other.findings["full"].why == "not run"
    assert other.findings["small"].why == "a side learns too little: 1, expected above 15"
    assert [each.best.paper for each in (first, other)] == [3.0, 1.0], "the paper's effect is known all the same"
    assert rows(other)[0][-1] == "not tried (full: not run; small: a side learns too little: 1, expected above 15)"
    own = dataclasses.replace(other, experiment=dataclasses.replace(other.experiment, rows=()))
    assert summary([first, other, own]) == summary([first, other]), "claims of our own do not count"
    assert summary([first, other]).startswith("Of 2 claims, 0 are tried: 0 supported")


def test_an_effect_that_the_paper_states_in_words() -> None:
    """It stands where the tables do not print both sides."""
    claim = dataclasses.replace(CLAIMS[0], stated=6.5)
    results = pd.DataFrame({"alpha": 0.1, "method": ["A", "B"], "round": 4, "top1": [math.nan, 53.0], "seed": 0})
    assert paper_effect(claim, results, 0) == 6.5
    assert paper_effect(claim, results.fillna(50), 0) == 3


def blue(path: str) -> int:
    """Count a picture's pixels in the colour of supported claims."""
    return int((np.abs(imread(path)[..., :3] - (0, 0x72 / 255, 0xB2 / 255)).max(axis=-1) < 0.02).sum())


def test_the_command_writes_page_and_pictures() -> None:
    """The page tells how much of the full scale was run, and what is smaller at another."""
    write("small/one/table-1", {0.1: [2, 2.5, 3]})
    write("one/table-1", {0.1: [2.0]})
    write("one/table-2", {0.1: [2.0, 3.0], 1.0: [1.0, 2.0]})
    for table in ("small/one/table-1", "one/table-1", "one/table-2"):
        Path("out", table, "table.md").touch()
    result = run("reproduce", "--ledger", "page/ledger.md", "--out", "out")
    assert result.status == 0, result.err
    assert "Of 5 claims, 2 are tried" in result.out
    text = Path("page/ledger.md").read_text()
    for words in (
        "| [one](#one) | 4 | 1 | 1 | 0 | 2 |",
        "| B beats A at 0.1. | small | +2.5 ± 1.2 | +3 | points | 0.013 | 0.026 | 3 | 3 | supported |",
        "Small scale: a hundred images. [All numbers](../out/small/one/table-1/table.md).\n",
        "Small scale: a hundred images.\n",  # the other experiments have no table
        "Full scale. [2 of 4 cells, 1 seed](../out/one/table-1/table.md).\n",
        "Full scale. [All numbers](../out/one/table-2/table.md).\n",
        "not tried (full: fewer than 3 seeds; small: not run)",
        "## one\n\n![Effects with 95 % t intervals](ledger-one.png)\n",
    ):
        assert words in text
    supported, none = blue("page/ledger-one.png"), blue("page/ledger-two.png")
    assert supported > 2 * none > 0, "a dot and its interval, and the legend's dot, against the legend's dot alone"


def test_a_file_that_holds_no_results() -> None:
    Path("results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigurationError, match=r"expected columns round and seed in results\.csv, got a, b"):
        read(Path("results.csv"))
