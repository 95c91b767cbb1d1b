"""Frames of charts with a choice of seed and round: read evenly spread rounds, as many as a page can hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_lightning.report.methods import Method
from fl_lightning.report.numbers import fewer, thin
from fl_lightning.report.parts import Frames, Table
from fl_lightning.runs.reader import Run

WANTED = 10  # rounds that every run should have, before the runs of another seed are shown
NAMED = 10_000  # largest number of clients that a page names
LISTED = 100  # largest number of frames in a chart's table of numbers
Read = Callable[[Path], Mapping[str, Any]]


def seed_of(run: Run) -> str:
    """Return the name of a run's seed."""
    return "–" if run.seed is None else str(run.seed)


def client_names(methods: Sequence[Method]) -> list[str] | None:
    """Return the clients' names, in the order of their numbers, for charts of all methods.

    Returns:
        None if there are more than 10,000 clients, or unless all runs have the same names.
    """
    found = [run.client_names() for method in methods for run in method.runs]
    names = found[0]
    return names if names is not None and len(names) <= NAMED and all(each == names for each in found) else None


def client_name(client: int, names: Sequence[str] | None) -> str:
    """Return a client's name, or the client's number if there is no name."""
    return names[client] if names is not None and client < len(names) else str(client)


def share(runs: Sequence[tuple[int, Run]], total: int, wanted: int = WANTED) -> tuple[list[tuple[int, Run]], int]:
    """Divide a number of frames among runs: of all seeds if each run gets the wanted number, else of the first seeds.

    Args:
        runs: the runs, each with the number of its panel.
        total: number of frames for all runs.
        wanted: number of frames that every run should have.

    Returns:
        The runs to show, and the number of frames of each, at least 1.
    """
    seeds = list(dict.fromkeys(seed_of(run) for _, run in runs))
    panels = len({panel for panel, _ in runs})
    kept = seeds[: max(1, total // (wanted * panels))]
    shown = [(panel, run) for panel, run in runs if seed_of(run) in kept]
    return shown, max(1, total // max(1, len(shown)))


def of_files(methods: Sequence[Method], name: str, read: Read, budget: int) -> Frames | None:
    """Read the files ``arrays/<name>_<round>.npz`` of runs as frames, one panel per method.

    Args:
        methods: the methods of the page.
        name: name of the files.
        read: reads a file as a frame: ``text`` and the data to draw.
        budget: largest number of characters in all frames.

    Returns:
        The frames; None without files.
    """
    having = [method for method in methods if any(run.arrays(name) for run in method.runs)]
    every = [(panel, run) for panel, method in enumerate(having) for run in method.runs if run.arrays(name)]
    if not every:
        return None
    one = list(every[0][1].arrays(name).values())[-1]
    shown, most = share(every, budget // len(json.dumps(read(one))))
    runs, dropped = [], 0
    for panel, run in shown:
        files = run.arrays(name)
        rounds = [list(files)[at] for at in thin(len(files), most)]
        dropped += len(files) - len(rounds)
        frames = [{"round": round, **read(files[round])} for round in rounds]
        runs.append({"panel": panel, "seed": seed_of(run), "frames": frames})
    dropped += sum(len(run.arrays(name)) for at, run in every if (at, run) not in shown)
    return Frames([method.name for method in having], runs, dropped=dropped)


def listed(frames: Frames, caption: str) -> Table:
    """Tabulate the summaries of the frames, by panel, seed and round."""
    every = [(run, frame) for run in frames.runs for frame in run["frames"]]
    views = frames.views or ("",)
    names = [name for text in every[0][1]["text"][:1] for name in text]
    head = [name + (f", {view}" if view else "") for view in views for name in names]
    rounds = "round" in every[0][1]
    rows = []
    for run, frame in (every[at] for at in thin(len(every), LISTED)):
        texts = [*frame["text"], *frame["text"]][: len(views)]  # without a correction, both views are the same
        place = [frames.panels[run["panel"]], run["seed"], *([str(frame["round"])] if rounds else [])]
        rows.append([*place, *(value for text in texts for value in text.values())])
    places = ["method", "seed", *(["round"] if rounds else [])]
    return Table([*places, *head], rows, caption + fewer(len(rows), len(every), "rows"))
