"""Frames of charts with a choice of seed and round: read evenly spread rounds, as many as a page can hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

from fl_lightning.report.compared.methods import Method
from fl_lightning.report.elements import Content, Frame, Frames, FramesOfRun, Table, for_scripts
from fl_lightning.report.numbers import fewer, thin
from fl_lightning.runs.reader import Run

WANTED = 10  # rounds that every run should have, before the runs of another seed are shown
NAMED_CLIENTS = 10_000  # largest number of clients that a page names
LISTED_FRAMES = 100  # largest number of frames in a chart's table of numbers


def seed_of(run: Run) -> str:
    """Return the name of a run's seed."""
    return "–" if run.seed is None else str(run.seed)


def client_names(methods: Sequence[Method]) -> list[str] | None:
    """Return the clients' names, in the order of their numbers, for charts of all methods.

    Returns:
        None if there are more than 10,000 clients, or unless all runs have the same names.
    """
    every = [run.client_names() for method in methods for run in method.runs]
    names = every[0]
    if names is None or len(names) > NAMED_CLIENTS:
        return None
    return names if all(others == names for others in every) else None


def names_of(clients: Iterable[int], names: Sequence[str] | None) -> list[Any]:
    """Return the clients' names, or their numbers if there are no names."""
    if names is None:
        return list(clients)
    return [client_name(client, names) for client in clients]


def client_name(client: int, names: Sequence[str] | None) -> str:
    """Return a client's name, or the client's number if there is no name."""
    if names is None or client >= len(names):
        return str(client)
    return names[client]


def runs_with(methods: Sequence[Method], content: Callable[[Run], Sized]) -> list[tuple[str, Run]]:
    """Return the runs that have some content, each with the name of its panel: the method's."""
    return [(method.name, run) for method in methods for run in method.runs if len(content(run))]


def divide_frames(
    runs: Sequence[tuple[str, Run]], total: int, wanted: int = WANTED
) -> tuple[list[tuple[str, Run]], int]:
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


def frames_of_files(
    methods: Sequence[Method], name: str, read: Callable[[Path], Frame[Content]], budget: int
) -> Frames[Content] | None:
    """Read the files ``arrays/<name>_<round>.npz`` of runs as frames, one panel per method.

    Args:
        methods: the methods of the page.
        name: name of the files.
        read: reads a file as a frame; the frame's round is set here.
        budget: largest number of characters in all frames.

    Returns:
        The frames; None without files.
    """
    every = runs_with(methods, lambda run: run.arrays(name))
    if not every:
        return None
    _, first_run = every[0]
    *_, last_file = first_run.arrays(name).values()
    letters = len(json.dumps(read(last_file), default=for_scripts))
    shown, most = divide_frames(every, budget // letters)
    panels = list(dict.fromkeys(panel for panel, _ in every))
    runs = []
    for panel, run in shown:
        files = list(run.arrays(name).items())
        frames = []
        for place in thin(len(files), most):
            number, path = files[place]
            frames.append(replace(read(path), round=number))
        runs.append(FramesOfRun(panels.index(panel), seed_of(run), frames))
    return Frames(panels, runs, recorded=sum(len(run.arrays(name)) for _, run in every))


def table_of_frames(frames: Frames[Any], caption: str) -> Table:
    """Tabulate the summaries of the frames, by panel, seed and, unless a frame is of all rounds, round."""
    every = [(run, frame) for run in frames.runs for frame in run.frames]
    _, first = every[0]
    views = frames.views or ("",)
    head = ["method", "seed"] if first.round is None else ["method", "seed", "round"]
    for view in views:
        head += [f"{name}, {view}" if view else name for name in first.text[0]]
    rows = []
    for place in thin(len(every), LISTED_FRAMES):
        run, frame = every[place]
        row = [frames.panels[run.panel], run.seed]
        if frame.round is not None:
            row.append(str(frame.round))
        texts = [*frame.text, *frame.text][: len(views)]  # without a correction, both views are the same
        for text in texts:
            row += text.values()
        rows.append(row)
    return Table(head, rows, caption + fewer(len(rows), len(every), "rows"))
