"""Seeds are added to the experiments that hold an open claim, and to no others."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from lib.made_results import BETTER

import fl_lightning.reproduce.running
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.run_options import RunOptions
from fl_lightning.reproduce.running import until_decided

# B's gains over A by experiment: decided by three seeds, by five, by none.
GAINS = {"clear": [2.9, 3, 3.1], "later": [2, 3, 4, 3, 3], "never": [9, -9, 8, -8, 7, -7, 6, -6, 5, -5, 4, -4]}


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[int]]]:
    """The experiments and seeds of each pass, in place of training: it writes the results of these seeds."""
    monkeypatch.chdir(tmp_path)
    passes: list[tuple[list[str], list[int]]] = []

    def run(experiments: Sequence[Experiment], runs: RunOptions) -> int:
        passes.append(([each.id for each in experiments], list(runs.seeds)))
        for each in experiments:
            rows = [
                {"method": method, "round": 1, "seed": seed, "top1": 50 + gain * (method == "B")}
                for seed, gain in zip(runs.seeds, GAINS[each.id], strict=False)
                for method in "AB"
            ]
            Path("out", each.id).mkdir(parents=True, exist_ok=True)
            pd.DataFrame(rows).to_csv(Path("out", each.id, "results.csv"), index=False)
        return int(runs.line == "fails")

    monkeypatch.setattr(fl_lightning.reproduce.running, "run", run)
    return passes


def decide(most: int, line: str = "", seeds: int = 3, dry_run: bool = False) -> int:
    experiments = [Experiment(id, id, "", "", (), "", ("top1",), (BETTER,)) for id in GAINS]
    options = RunOptions(line, Path("out"), range(2, 2 + seeds), (), (), 1, dry_run)
    return until_decided(experiments, options, most)


def test_seeds_are_added_until_no_claim_is_open(ran: list[tuple[list[str], list[int]]]) -> None:
    """From the first seed on, 3, 5, 8 and 12: each pass has the experiments that the one before has left open."""
    assert decide(most=12) == 0
    assert [names for names, _ in ran] == [["clear", "later", "never"], ["later", "never"], ["never"], ["never"]]
    assert [seeds for _, seeds in ran] == [list(range(2, 2 + seeds)) for seeds in (3, 5, 8, 12)]


@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        ({"most": 8}, [3, 5, 8]),
        ({"most": 7}, [3, 5]),
        ({"most": 12, "seeds": 4}, [4, 5, 8, 12]),
        ({"most": 2}, [3]),
        ({"most": 8, "dry_run": True}, [8]),
        ({"most": 12, "line": "fails"}, [3]),
    ],
)
def test_it_ends_at_the_most_seeds_or_with_the_first_failure(
    ran: list[tuple[list[str], list[int]]], options: dict[str, int], seeds: list[int]
) -> None:
    """A dry run plans the most seeds alone."""
    assert decide(**options) == ("line" in options)  # type: ignore[arg-type]  # one of them is text
    assert [len(each) for _, each in ran] == seeds
