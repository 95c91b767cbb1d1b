"""The page's tables: results, settings, times, environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fl_lightning.commands import counted, some
from fl_lightning.report.compared.experiments import Experiment
from fl_lightning.report.compared.methods import Method, differing, every_run, logged
from fl_lightning.report.content.resources import PARTS
from fl_lightning.report.elements import Table
from fl_lightning.report.numbers import plus_minus, written
from fl_lightning.report.statistics import interval, label
from fl_lightning.runs.catalogue import about, lower_is_better
from fl_lightning.runs.config.settings import CLASS, RULES

# Settings that are shown even if all methods share the value.
MAIN = {
    RULES: "Rules",
    "trainer.max_epochs": "Rounds",
    f"data{CLASS}": "Data",
    "data.num_clients": "Clients",
    f"data.partition{CLASS}": "Partition",
    "data.partition.alpha": "Partition: alpha",
    "data.participation": "Participation",
    "data.batch_size": "Batch size",
    "model.local_epochs": "Local epochs",
    "model.local_steps": "Local steps",
    f"model.client.network{CLASS}": "Network",
    f"model.client.optimizer{CLASS}": "Client optimizer",
    "model.client.optimizer.lr": "Client learning rate",
    f"model.server_optimizer{CLASS}": "Server optimizer",
    "model.server_optimizer.lr": "Server learning rate",
}
# Titles for entries of environment.yaml.
NAMES = {
    "data": "fingerprint of the data",
    "code: commit": "commit of the code",
    "code: dirty": "code changed since the commit",
}
VALUES = 6  # largest number of different values of an entry that are listed
BEST = (
    "The best round is chosen on the examples that it is measured on (the test set, unless the data have a validation "
    "set), so its value is too good to report."
)
MADE_WITH = "Environment of the runs"
# Columns of timings that the table of times shows, each with its title.
TIMES = {"seconds": "seconds per round", **PARTS, "rest": "the rest"}


def last_and_best(methods: Sequence[Method]) -> Table:
    """Tabulate each validation metric after the last and the best round, and test metrics; without any, the loss."""
    names = logged(methods)
    metrics = [name for name in names if name.startswith(("val/", "test/"))] or [n for n in names if n == "train/loss"]
    bests = {metric: [False] if metric.startswith("test/") else [False, True] for metric in metrics}
    head = ["method", "seeds", "rounds"]
    for metric in metrics:
        title = about(metric).title
        head += [f"{title}: last", f"{title}: best round"] if True in bests[metric] else [title]
    rows = []
    for method in methods:
        row = [method.name, _seeds(method), _range(run.rounds[0] for run in method.runs)]
        rows.append([*row, *(_over_seeds(method, metric, best) for metric in metrics for best in bests[metric])])
    several = any(len(method.runs) > 1 for method in methods)
    about_seeds = ": means over the seeds ± half of the 95 % t interval" if several else ""
    return Table(head, rows, f"Last and best rounds{about_seeds}. {BEST}")


def finished(methods: Sequence[Method]) -> str:
    """Say whether all runs have finished their rounds, or at which round they stopped."""
    rounds = [run.rounds for method in methods for run in method.runs]
    stopped = sorted((done, asked) for done, asked in rounds if asked and done < asked)
    if not stopped:
        return "finished"
    some = f"{len(stopped)} of {len(rounds)} runs " if len(rounds) > 1 else ""
    return f"{some}stopped at round {stopped[0][0]:,} of {stopped[0][1]:,}"


def index(experiments: Sequence[Experiment], links: Sequence[str]) -> Table:
    """Tabulate experiments: methods, seeds, status, and the metric of the method that ended best.

    Args:
        experiments: the experiments.
        links: address of each experiment on the page.
    """
    rows = []
    for each in experiments:
        seeds = _range(len(method.runs) for method in each.methods)
        row = [each.name, some([method.name for method in each.methods]), seeds, finished(each.methods)]
        for comparison in each.comparisons[:1]:
            metric = comparison.metric
            choose = min if lower_is_better(metric) else max
            top = choose(comparison.standings, key=lambda standing: standing.last[0]).method
            row += [about(metric).title, top.name, *(_over_seeds(top, metric, best) for best in (False, True))]
        rows.append([*row, *["–"] * (8 - len(row))])
    head = ["experiment", "methods", "seeds", "status", "measure", "best method at the end", "last round", "best round"]
    return Table(head, rows, f"Experiments on this page. {BEST}", words=True, links=links)


def _range(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return "–".join(dict.fromkeys([f"{found[0]:,}", f"{found[-1]:,}"]))


def _seeds(method: Method) -> str:
    seeds = [run.seed for run in method.runs if run.seed is not None]
    return ", ".join(map(str, sorted(seeds, key=lambda seed: (str(type(seed)), seed)))) or "–"


def _over_seeds(method: Method, metric: str, best: bool) -> str:
    choose = "min" if lower_is_better(metric) else "max"
    picked = [each.agg(choose) if best else each.iloc[-1] for each in method.series(metric).values()]
    return plus_minus(*interval(picked), about(metric).percent)


def settings(methods: Sequence[Method]) -> Table | None:
    """Tabulate the settings that differ, one column per method; the main settings of a single method."""
    configured = [method for method in methods if method.settings]
    if len(configured) == 1:
        known = [name for name in MAIN if configured[0].settings.get(name) is not None]
        return Table(["setting", "value"], _rows(known, configured), "Main settings", words=True)
    rows = _rows(differing([method.settings for method in configured]), configured)
    head = ["setting", *(method.name for method in configured)]
    return Table(head, rows, "Settings that differ", words=True) if rows else None


def shared(methods: Sequence[Method]) -> Table | None:
    """Tabulate the settings that are the same for all of several methods, the main ones first."""
    configured = [method for method in methods if method.settings]
    if len(configured) < 2:
        return None
    differ, known = differing([method.settings for method in configured]), configured[0].settings
    names = [name for name in dict.fromkeys([*MAIN, *known]) if name not in differ and known.get(name) is not None]
    rows, are = _rows(names, configured[:1]), "is" if len(names) == 1 else "are"
    caption = f"{counted(len(names), 'setting')} {are} the same for all methods"
    return Table(["setting", "value"], rows, caption, words=True) if rows else None


def _rows(names: Iterable[str], methods: Sequence[Method]) -> list[list[str]]:
    """Write settings: a row for each, a column for each method."""
    return [
        [MAIN.get(name, name.removesuffix(CLASS)), *(label(method.settings.get(name)) for method in methods)]
        for name in names
    ]


def times(methods: Sequence[Method]) -> Table | None:
    """Tabulate the time of each method, averaged over its runs, and the largest memory."""
    head = ["method", "minutes in total", *TIMES.values(), "memory, GiB", "GPU, GiB"]
    rows = []
    for method in methods:
        if timed := [run.timings for run in method.runs if len(run.timings)]:
            minutes = np.mean([each["seconds"].sum() / 60 for each in timed])
            usual = [np.mean([each[name].median() for each in timed]) for name in TIMES]
            peaks = [max(each[name].max() for each in timed) / 1024 for name in ("memory_mib", "gpu_mib")]
            rows.append([method.name, *(written(float(value)) for value in (minutes, *usual, *peaks))])
    caption = "Time (median over the rounds, mean over the runs) and largest memory"
    return Table(head, rows, caption) if rows else None


def environment(methods: Sequence[Method]) -> Table | None:
    """Tabulate the environments of the runs; if runs differ, each value with its runs."""
    found: dict[str, dict[str, list[str]]] = {}
    runs = [(name, run) for name, run in every_run(methods) if run.environment]
    for name, run in runs:
        for key, value in _flat(run.environment):
            found.setdefault(NAMES.get(key, key), {}).setdefault(str(value), []).append(name)
    rows = [
        [key, value, "all" if len(names) == len(runs) else "; ".join(names)]
        for key, values in found.items()
        for value, names in _listed(key, values).items()
    ]
    head = ["what", "value", "runs"][: 2 if len(runs) == 1 else 3]
    return Table(head, [row[: len(head)] for row in rows], MADE_WITH, words=True) if rows else None


def _listed(key: str, values: Mapping[str, list[str]]) -> Mapping[str, list[str]]:
    """Join the values of an entry to one if they are times, or too many for one row each."""
    names = [name for each in values.values() for name in each]
    if key == "started" and len(values) > 1:
        return {f"{min(values)} to {max(values)}": names}
    return values if len(values) <= VALUES else {f"{len(values)} different values, such as {next(iter(values))}": names}


def _flat(content: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in content.items():
        if key == RULES:
            continue  # the rules are shown among the settings
        if isinstance(value, dict):
            yield from ((name if key == "versions" else f"{key}: {name}", each) for name, each in _flat(value))
        elif value is not None:
            yield str(key), ", ".join(map(_entry, value)) if isinstance(value, list) else value


def _entry(value: Any) -> str:
    """Write an entry of a list; of a resumption the time and the round, since a note tells what changed."""
    return f"{value.get('time')} (round {value.get('round')})" if isinstance(value, Mapping) else str(value)
