"""Frames of charts with a choice of seed and round: read evenly spread rounds, as many as a page can hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from fl_lightning.report.compared.methods import Method
from fl_lightning.report.elements import Frames, Table
from fl_lightning.report.numbers import fewer, thin
from fl_lightning.runs.reader import Run

WANTED = 10  # rounds that every run should have, before the runs of another seed are shown
NAMED_CLIENTS = 10_000  # largest number of clients that a page names
LISTED_FRAMES = 100  # largest number of frames in a chart's table of numbers
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
    return names if names is not None and len(names) <= NAMED_CLIENTS and all(each == names for each in found) else None


def named(clients: Iterable[int], names: Sequence[str] | None) -> list[Any]:
    """Return the clients' names, or their numbers if there are no names."""
    return list(clients) if names is None else [client_name(each, names) for each in clients]


def client_name(client: int, names: Sequence[str] | None) -> str:
    """Return a client's name, or the client's number if there is no name."""
    return names[client] if names is not None and client < len(names) else str(client)


def runs_with(methods: Sequence[Method], found: Callable[[Run], Sized]) -> list[tuple[str, Run]]:
    """Return the runs in which something is found, each with the name of its panel: the method's."""
    return [(method.name, run) for method in methods for run in method.runs if len(found(run))]


def share(runs: Sequence[tuple[str, Run]], total: int, wanted: int = WANTED) -> tuple[list[tuple[str, Run]], int]:
    """Divide a number of frames among runs: of all seeds if each run gets the wanted number, else of the first seeds.

    Args:
        runs: the runs, each with the name of its panel.
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
    if not (every := runs_with(methods, lambda run: run.arrays(name))):
        return None
    one = list(every[0][1].arrays(name).values())[-1]
    shown, most = share(every, budget // len(json.dumps(read(one))))
    panels, runs = list(dict.fromkeys(panel for panel, _ in every)), []
    for panel, run in shown:
        files = list(run.arrays(name).items())
        frames = [{"round": files[at][0], **read(files[at][1])} for at in thin(len(files), most)]
        runs.append({"panel": panels.index(panel), "seed": seed_of(run), "frames": frames})
    return Frames(panels, runs, recorded=sum(len(run.arrays(name)) for _, run in every))


def tabulated(frames: Frames, caption: str) -> Table:
    """Tabulate the summaries of the frames, by panel, seed and round."""
    every = [(frames.panels[run["panel"]], run["seed"], frame) for run in frames.runs for frame in run["frames"]]
    views, first = frames.views or ("",), every[0][2]
    head = [name + (f", {view}" if view else "") for view in views for name in first["text"][0]]
    rows = []
    for panel, seed, frame in (every[at] for at in thin(len(every), LISTED_FRAMES)):
        texts = [*frame["text"], *frame["text"]][: len(views)]  # without a correction, both views are the same
        round = [str(frame["round"])] if "round" in frame else []
        rows.append([panel, seed, *round, *(value for text in texts for value in text.values())])
    places = ["method", "seed", *(["round"] if "round" in first else [])]
    return Table([*places, *head], rows, caption + fewer(len(rows), len(every), "rows"))
