"""The page's tables: results, settings, clients, times, environment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fl_lightning.report.methods import Method, every_run, varying
from fl_lightning.report.parts import PER_CENT, Table, with_interval, written
from fl_lightning.runs.catalogue import about, is_item, lower_is_better
from fl_lightning.runs.reader import Run
from fl_lightning.runs.seeds import interval, label
from fl_lightning.runs.settings import CLASS, RULES

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
NAMES = {"data": "fingerprint of the data"}  # titles for entries of environment.yaml
BEST = (
    "The best round is chosen on the examples that it is measured on (the test set, unless the data have a validation "
    "set), so its value is too good to report."
)
MADE_WITH = "What the runs were made with"
# Columns of timings that the table of times shows, each with its title.
TIMES = {
    "seconds": "seconds per round",
    "local": "local training",
    "server": "server",
    "monitors": "monitors",
    "rest": "the rest",
}
SHOWN = 1000  # about the largest number of clients in all tables of a page


def last_and_best(methods: Sequence[Method]) -> Table:
    """Tabulate each validation metric after the last and after the best round, and the test metrics; else the loss."""
    names = dict.fromkeys(name for method in methods for run in method.runs for name in run.names)
    metrics = [name for name in names if name.startswith(("val/", "test/"))] or [n for n in names if n == "train/loss"]
    head = ["method", "seeds", "rounds"]
    for metric in metrics:
        title = about(metric).title
        head += [title] if metric.startswith("test/") else [f"{title}: last", f"{title}: best round"]
    rows = []
    for method in methods:
        rounds = sorted({int(run.metrics.index.max()) for run in method.runs})
        row = [method.name, _seeds(method), "–".join(dict.fromkeys([f"{rounds[0]:,}", f"{rounds[-1]:,}"]))]
        for metric in metrics:
            row += [
                _over_seeds(method, metric, best)
                for best in ((False,) if metric.startswith("test/") else (False, True))
            ]
        rows.append(row)
    several = any(len(method.runs) > 1 for method in methods)
    about_seeds = ": means over the seeds ± half of the 95 % t interval" if several else ""
    return Table(head, rows, f"Last and best rounds{about_seeds}. {BEST}")


def _seeds(method: Method) -> str:
    return ", ".join(str(run.seed) for run in method.runs if run.seed is not None) or "–"


def _over_seeds(method: Method, metric: str, best: bool) -> str:
    values = [run.metrics[metric].dropna() for run in method.runs if metric in run.metrics]
    chosen = "last" if not best else "min" if lower_is_better(metric) else "max"
    picked = [each.iloc[-1] if chosen == "last" else each.agg(chosen) for each in values if len(each)]
    percent = about(metric).percent
    return with_interval(*interval(picked), percent) + PER_CENT * percent


def settings(methods: Sequence[Method]) -> Table | None:
    """Tabulate the settings, one column per method: first the differing ones, then the main ones that all share."""
    configured = [method for method in methods if method.settings]
    if not configured:
        return None
    differ = varying([method.settings for method in configured])
    shared = [name for name in MAIN if name not in differ and configured[0].settings.get(name) is not None]
    rows = [
        [_called(name), *(_value(method, name) for method in configured), "yes" if name in differ else ""]
        for name in [*differ, *shared]
    ]
    if len(configured) == 1:
        return Table(["setting", "value"], [row[:-1] for row in rows], "Main settings", words=True)
    head = ["setting", *(method.name for method in configured), "differs"]
    return Table(head, rows, "What differs, and the main settings that all share", words=True)


def _called(name: str) -> str:
    return MAIN.get(name, name.removesuffix(CLASS))


def _value(method: Method, name: str) -> str:
    return label(value) if (value := method.settings.get(name)) is not None else "–"


def clients(methods: Sequence[Method]) -> list[Table]:
    """Make a table for each run that recorded its clients, one row per client."""
    tables = {name: _of_clients(run) for name, run in every_run(methods)}
    tables = {name: table for name, table in tables.items() if len(table)}
    most = max(20, SHOWN // max(1, len(tables)))
    return [_client_table(name, table, most) for name, table in tables.items()]


def _of_clients(run: Run) -> pd.DataFrame:
    """Tabulate by client: ``examples``, ``classes``, ``rounds`` taken part in, last value and mean of each metric."""
    columns: dict[str, Any] = {}
    if arrays := run.partition():
        columns["examples"] = pd.Series(arrays["sizes"])
        if "counts" in arrays:
            columns["classes"] = pd.Series((arrays["counts"] > 0).sum(1))
    prefixes = dict.fromkeys(n.rpartition("/")[0] for n in run.names if is_item(n, "clients/.*|fedlaw/weight"))
    values = {prefix: run.items(prefix) for prefix in prefixes}
    if values:
        columns["rounds"] = pd.DataFrame({prefix: each.count() for prefix, each in values.items()}).max(axis=1)
    for prefix, each in values.items():
        title = about(f"{prefix}/*").title.removeprefix("clients/").removesuffix("/*")
        columns[f"{title}, last"] = each.ffill().iloc[-1]
        columns[f"{title}, mean"] = each.mean()
    return pd.DataFrame(columns)


def _client_table(name: str, table: pd.DataFrame, most: int) -> Table:
    of = len(table)
    if of > most:  # keep the clients with the most data, or the first ones
        table = table.nlargest(most, "examples").sort_index() if "examples" in table else table.iloc[:most]
    chosen = "the {} clients with the most examples, of {:,}" if "examples" in table else "the first {} of {:,} clients"
    percent = [str(column).startswith("accuracy") for column in table]
    rows = [
        [str(client), *(written(value, share) for value, share in zip(row, percent, strict=True))]
        for client, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    values = [
        [float(client), *(None if math.isnan(value) else float(value) for value in row)]
        for client, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    caption = f"Clients of {name}" + (f": {chosen.format(most, of)}" if of > most else "")
    return Table(["client", *table.columns], rows, caption, values=values)


def times(methods: Sequence[Method]) -> Table | None:
    """Tabulate the time of each method, averaged over its runs, and the largest memory."""
    head = ["method", "minutes in all", *TIMES.values(), "memory, GiB", "GPU, GiB"]
    rows = []
    for method in methods:
        timed = [run.timings for run in method.runs if len(run.timings)]
        if timed:
            seconds = [each["seconds"].sum() / 60 for each in timed]
            usual = [np.mean([each[name].median() for each in timed]) for name in TIMES]
            peaks = [np.max([each[name].max() for each in timed]) / 1024 for name in ("memory_mib", "gpu_mib")]
            rows.append([method.name, *(written(float(value)) for value in (np.mean(seconds), *usual, *peaks))])
    caption = "Time and memory: medians over the rounds, means over the runs, the largest memory"
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
        for value, names in values.items()
    ]
    if len(runs) == 1:
        return Table(["what", "value"], [row[:2] for row in rows], MADE_WITH, words=True)
    return Table(["what", "value", "runs"], rows, MADE_WITH, words=True) if rows else None


def _flat(content: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in content.items():
        if key == RULES:
            continue  # the rules are shown among the settings
        if isinstance(value, dict):
            yield from ((name if key == "versions" else f"{key}: {name}", each) for name, each in _flat(value))
        elif value is not None:
            yield str(key), value
