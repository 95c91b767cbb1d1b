"""Frames of a chart: what scripts read of them, and how the room on a page is divided among runs."""

import json
from pathlib import Path

import pytest
from report.folders import config, write

from fl_lightning.report.compared.methods import make_methods
from fl_lightning.report.content.arrays import Cosines
from fl_lightning.report.content.by_round import divide_frames, runs_with, table_of_frames
from fl_lightning.report.elements import ClientsTable, Frame, Frames, FramesOfRun, Measure, for_scripts
from fl_lightning.runs.reader import read_runs


def test_scripts_read_a_frames_content_beside_its_text() -> None:
    """A frame of all rounds has no round; other dataclasses are their fields, however deep."""
    text = [{"mean cosine": "0.5"}]
    run = FramesOfRun(0, "1", [Frame(text, Cosines([4, 7], ["fz9/"]), 3), Frame(text, Cosines([4], ["fw=="]))])
    assert json.loads(json.dumps(run, default=for_scripts)) == {
        "panel": 0,
        "seed": "1",
        "frames": [
            {"round": 3, "text": text, "clients": [4, 7], "cosines": ["fz9/"]},
            {"text": text, "clients": [4], "cosines": ["fw=="]},
        ],
    }
    table = ClientsTable([Measure("training loss", False, 1.0, 5.0)], [])
    measure = {"title": "training loss", "percent": False, "low": 1.0, "high": 5.0}
    assert json.loads(json.dumps(table, default=for_scripts)) == {"measures": [measure], "runs": []}


def test_a_frame_with_one_view_has_its_summary_under_both() -> None:
    """Round 1 was not corrected; its cosine of 0.1 is that after the correction, too."""
    first = Frame([{"mean cosine": "0.1"}], Cosines([0, 1], ["fw1/"]), 1)
    second = Frame([{"mean cosine": "0.2"}, {"mean cosine": "0.3"}], Cosines([0, 1], ["fxl/", "fyZ/"]), 2)
    frames = Frames(["FedAvg"], [FramesOfRun(0, "–", [first, second])], views=("before", "after"), recorded=3)
    table = table_of_frames(frames, "Cosines")
    assert table.head == ["method", "seed", "round", "mean cosine, before", "mean cosine, after"]
    assert table.rows == [["FedAvg", "–", "1", "0.1", "0.1"], ["FedAvg", "–", "2", "0.2", "0.3"]]
    assert frames.note == " Of 3 recorded matrices 2 are shown, evenly spread over the rounds."


@pytest.mark.parametrize(("total", "runs", "each"), [(60, 6, 10), (59, 4, 14), (3, 2, 1), (1, 2, 1)])
def test_later_seeds_are_left_out_if_frames_are_few(total: int, runs: int, each: int, tmp_path: Path) -> None:
    """Three seeds of two methods ask for ten frames a run: 20 for each seed. The first seed is always shown."""
    for seed in (1, 2, 3):
        for rule in ("FedNova", "FedLAW"):
            write(tmp_path / f"{rule}-{seed}", {"val/loss": [1.0]}, config(rule, seed=seed))
    every = runs_with(make_methods(read_runs([tmp_path]))[0], lambda run: run.names)
    shown, frames = divide_frames(every, total)
    assert (len(shown), frames) == (runs, each)
    assert {run.seed for _, run in shown} == set(range(1, 1 + runs // 2))
