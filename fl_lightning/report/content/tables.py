"""The page's tables: results, settings, times, environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fl_lightning.better import Better, how_to_say
from fl_lightning.commands import counted, some
from fl_lightning.report.compared.comparison import Comparison
from fl_lightning.report.compared.experiments import Experiment
from fl_lightning.report.compared.methods import Method, better_values, differing_names, every_run, metric_names
from fl_lightning.report.content.charts import LAYER, LAYER_AFTER, in_order
from fl_lightning.report.content.resources import PARTS
from fl_lightning.report.elements import Table
from fl_lightning.report.numbers import PER_CENT, fixed, plus_minus, written
from fl_lightning.report.statistics import interval, label
from fl_lightning.runs.catalogue import about
from fl_lightning.runs.config.settings import CLASS, RULES
from fl_lightning.runs.reader import load

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
TEST = "test/"  # beginning of the names of metrics that are measured once, after the last round
VALUES = 6  # largest number of different values of an entry that are listed
BEST = (
    "The best round is chosen on the examples that it is measured on (the test set, unless the data have a validation "
    "set), so its value is too good to report."
)
MADE_WITH = "Environment of the runs"
FACTORS = {"A": ".lora_A", "B": ".lora_B"}  # what peft adds to a layer's name for each matrix of an adapter
# Columns of timings that the table of times shows, each with its title.
TIMES = {"seconds": "seconds per round", **PARTS, "rest": "the rest"}


def last_and_best(methods: Sequence[Method]) -> Table:
    """Tabulate each validation metric after the last and the best round, and test metrics; without any, the loss.

    A metric of which nobody says which values are better has no best round.
    """
    names = metric_names(methods)
    metrics = [name for name in names if name.startswith(("val/", TEST))]
    if not metrics:
        metrics = [name for name in names if name == "train/loss"]
    best = {}
    for metric in metrics:
        if not metric.startswith(TEST):
            best[metric] = better_values(methods, metric)
    head = ["method", "seeds", "rounds"]
    for metric in metrics:
        title = about(metric).title
        head.append(title if metric.startswith(TEST) else f"{title}: last")
        if best.get(metric):
            head.append(f"{title}: best round")
    rows = []
    for method in methods:
        row = [method.name, _seeds(method), _range(run.rounds[0] for run in method.runs)]
        for metric in metrics:
            row.append(_last_round(method, metric))
            if better := best.get(metric):
                row.append(_best_round(method, metric, better))
        rows.append(row)
    caption = "Last and best rounds"
    if any(len(method.runs) > 1 for method in methods):
        caption += ": means over the seeds ± half of the 95 % t interval"
    caption = f"{caption}. {BEST}" if any(best.values()) else f"{caption}."
    for metric, better in best.items():
        if better is None:
            caption += f" The runs do not say which values of {metric} are better: {how_to_say(metric)}."
    return Table(head, rows, caption)


def status(methods: Sequence[Method]) -> str:
    """Say whether all runs have finished their rounds, or at which round they stopped."""
    rounds = [run.rounds for method in methods for run in method.runs]
    stopped = sorted((done, asked) for done, asked in rounds if asked and done < asked)
    if not stopped:
        return "finished"
    done, asked = stopped[0]
    words = f"stopped at round {done:,} of {asked:,}"
    return f"{len(stopped)} of {len(rounds)} runs {words}" if len(rounds) > 1 else words


def index(experiments: Sequence[Experiment], links: Sequence[str]) -> Table:
    """Tabulate experiments: methods, seeds, status, and the metric of the method that ended best.

    Args:
        experiments: the experiments.
        links: address of each experiment on the page.
    """
    head = ["experiment", "methods", "seeds", "status", "measure", "best method at the end", "last round", "best round"]
    rows = []
    for experiment in experiments:
        methods = experiment.methods
        seeds = _range(len(method.runs) for method in methods)
        row = [experiment.name, some([method.name for method in methods]), seeds, status(methods)]
        if experiment.comparisons:
            row += _best_method(experiment.comparisons[0])
        else:
            row += ["–"] * (len(head) - len(row))
        rows.append(row)
    return Table(head, rows, f"Experiments on this page. {BEST}", words=True, links=links)


def _best_method(comparison: Comparison) -> list[str]:
    """Write the metric, the method that ended best, and the method's metric after the last and the best round."""
    metric = comparison.metric
    better = comparison.better
    if not better:
        return [about(metric).title, "–", "–", "–"]
    choose = min if better == "lower" else max
    best = choose(comparison.standings, key=lambda standing: standing.last[0]).method
    return [about(metric).title, best.name, _last_round(best, metric), _best_round(best, metric, better)]


def _range(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    low, high = ordered[0], ordered[-1]
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _seeds(method: Method) -> str:
    seeds = [run.seed for run in method.runs if run.seed is not None]
    return ", ".join(map(str, sorted(seeds, key=lambda seed: (str(type(seed)), seed)))) or "–"


def _last_round(method: Method, metric: str) -> str:
    """Write a metric after the last round: mean over the seeds, and half the width of its interval."""
    return _mean_of(metric, [column.iloc[-1] for column in method.series(metric).values()])


def _best_round(method: Method, metric: str, better: Better) -> str:
    """Write a metric after each seed's best round: mean over the seeds, and half the width of its interval."""
    choose = "min" if better == "lower" else "max"
    return _mean_of(metric, [column.agg(choose) for column in method.series(metric).values()])


def _mean_of(metric: str, values: Sequence[float]) -> str:
    mean, half = interval(values)
    return plus_minus(mean, half, about(metric).percent)


def settings(methods: Sequence[Method]) -> Table | None:
    """Tabulate the settings that differ, one column per method; the main settings of a single method."""
    configured = [method for method in methods if method.settings]
    if len(configured) == 1:
        known = [name for name in MAIN if configured[0].settings.get(name) is not None]
        return Table(["setting", "value"], _rows(known, configured), "Main settings", words=True)
    rows = _rows(differing_names([method.settings for method in configured]), configured)
    head = ["setting", *(method.name for method in configured)]
    return Table(head, rows, "Settings that differ", words=True) if rows else None


def shared_settings(methods: Sequence[Method]) -> Table | None:
    """Tabulate the settings that are the same for all of several methods, the main ones first."""
    configured = [method for method in methods if method.settings]
    if len(configured) < 2:
        return None
    differ = differing_names([method.settings for method in configured])
    known = configured[0].settings
    names = [name for name in dict.fromkeys([*MAIN, *known]) if name not in differ and known.get(name) is not None]
    if not names:
        return None
    are = "is" if len(names) == 1 else "are"
    caption = f"{counted(len(names), 'setting')} {are} the same for all methods"
    return Table(["setting", "value"], _rows(names, configured[:1]), caption, words=True)


def _rows(names: Iterable[str], methods: Sequence[Method]) -> list[list[str]]:
    """Write settings: a row for each, a column for each method."""
    rows = []
    for name in names:
        values = [label(method.settings.get(name)) for method in methods]
        rows.append([MAIN.get(name, name.removesuffix(CLASS)), *values])
    return rows


def times(methods: Sequence[Method]) -> Table | None:
    """Tabulate the time of each method, averaged over its runs, and the largest memory."""
    head = ["method", "minutes in total", *TIMES.values(), "memory, GiB", "GPU, GiB"]
    rows = []
    for method in methods:
        timings = [run.timings for run in method.runs if len(run.timings)]
        if timings:
            minutes = np.mean([table["seconds"].sum() / 60 for table in timings])
            usual = [np.mean([table[column].median() for table in timings]) for column in TIMES]
            peaks = [max(table[column].max() for table in timings) / 1024 for column in ("memory_mib", "gpu_mib")]
            rows.append([method.name, *(written(float(value)) for value in (minutes, *usual, *peaks))])
    caption = "Time (median over the rounds, mean over the runs) and largest memory"
    return Table(head, rows, caption) if rows else None


def environment(methods: Sequence[Method]) -> Table | None:
    """Tabulate the environments of the runs; if runs differ, each value with its runs."""
    runs = [(name, run) for name, run in every_run(methods) if run.environment]
    entries: dict[str, dict[str, list[str]]] = {}  # names of runs, by entry and value
    for name, run in runs:
        for key, value in _entries(run.environment):
            entries.setdefault(NAMES.get(key, key), {}).setdefault(str(value), []).append(name)
    rows = []
    for key, values in entries.items():
        for value, names in _join_values(key, values).items():
            rows.append([key, value, "all" if len(names) == len(runs) else "; ".join(names)])
    if not rows:
        return None
    if len(runs) == 1:
        return Table(["what", "value"], [row[:2] for row in rows], MADE_WITH, words=True)
    return Table(["what", "value", "runs"], rows, MADE_WITH, words=True)


def _join_values(key: str, values: Mapping[str, list[str]]) -> Mapping[str, list[str]]:
    """Join the values of an entry to one if they are times, or too many for one row each.

    Args:
        key: title of the entry.
        values: names of the runs with each value.
    """
    names = [name for of_value in values.values() for name in of_value]
    if key == "started" and len(values) > 1:
        return {f"{min(values)} to {max(values)}": names}
    if len(values) > VALUES:
        return {f"{len(values)} different values, such as {next(iter(values))}": names}
    return values


def _entries(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """List the entries of environment.yaml, each with its value; an entry in an entry has both names."""
    for key, value in content.items():
        if key == RULES or value is None:
            continue  # the rules are shown among the settings
        if isinstance(value, dict):
            for name, inner in _entries(value):
                yield name if key == "versions" else f"{key}: {name}", inner
        elif isinstance(value, list):
            yield str(key), ", ".join(map(_entry, value))
        else:
            yield str(key), value


def _entry(value: Any) -> str:
    """Write an entry of a list; of a resumption the time and the round, since a note tells what changed."""
    if isinstance(value, Mapping):
        return f"{value.get('time')} (round {value.get('round')})"
    return str(value)


def adapters(methods: Sequence[Method]) -> Table | None:
    """Tabulate the conflict ratio of each adapter's matrices A and B at the end of the runs, before → after correction.

    Returns:
        A row for each layer with an adapter, in the module's order, and their mean; None if no run logged the ratios of
        adapters.
    """
    layers: dict[str, str] = {}  # of each adapted layer, the first of the adapter's matrices that was logged
    before: dict[str, dict[str, float]] = {}  # by method and matrix, then by adapted layer
    after: dict[str, dict[str, float]] = {}
    for method in methods:
        matrices = [name.removeprefix(LAYER) for name in metric_names([method]) if name.startswith(LAYER)]
        for factor, mark in FACTORS.items():
            for matrix in matrices:
                if mark in matrix:
                    name = matrix.replace(mark, "").removesuffix(".default")
                    layers.setdefault(name, matrix)
                    ends = _ends_of_layer(method, matrix)
                    for ratios, ratio in zip((before, after), ends, strict=True):
                        ratios.setdefault(f"{method.name}: {factor}", {})[name] = ratio
    if not layers:
        return None
    order = in_order(methods, list(layers.values()))
    table = pd.DataFrame(before, sorted(layers, key=lambda name: order.index(layers[name])))
    corrected = pd.DataFrame(after, table.index)
    table.loc["mean of the layers"], corrected.loc["mean of the layers"] = table.mean(), corrected.mean()
    rows = []
    for name in table.index:
        rows.append([name, *map(_change, table.loc[name], corrected.loc[name])])
    caption = "Conflict ratio of LoRA's matrices, before → after correction: mean over the last tenth of the rounds"
    return Table(["adapter of", *table], rows, caption)


def _ends_of_layer(method: Method, layer: str) -> tuple[float, float]:
    """Average a layer's conflict ratio over the last tenth of the rounds of each run, and over the runs.

    Returns:
        The ratio before and after correction; nan after, if no rule has corrected updates.
    """
    before, after = [], []
    corrected = method.series(LAYER_AFTER + layer)
    for run, ratios in method.series(LAYER + layer).items():
        last = ratios.iloc[-max(1, len(ratios) // 10) :]
        before.append(last.mean())
        if run in corrected:  # in rounds without a correction, nothing is logged, and nothing has changed
            after.append(corrected[run].reindex(last.index).fillna(last).mean())
    return pd.Series(before, dtype=float).mean(), pd.Series(after, dtype=float).mean()


def _change(before: float, after: float) -> str:
    """Write a share before and after correction; the first alone if nothing was corrected."""
    if np.isnan(before):
        return "–"
    shares = [before] if np.isnan(after) else [before, after]
    return f"{' → '.join(fixed(100 * share, 0) for share in shares)}{PER_CENT}"


def answers(methods: Sequence[Method]) -> Table | None:
    """Tabulate what language models answer: of each method's first run, the answers of the first and the last round.

    Returns:
        A row for each prompt and round; None if no run has :class:`GenerationMonitor`.
    """
    rows = []
    for method in methods:
        files = method.runs[0].arrays("generated")
        rounds = list(files)
        for round in dict.fromkeys(rounds[:1] + rounds[-1:]):  # once, where the first is the last
            arrays = load(files[round], "prompts", "responses", "answers")
            for cells in zip(*arrays.values(), strict=True):
                rows.append([method.name, str(round), *map(str, cells)])
    caption = "What the global model answers to validation prompts"
    return Table(["method", "round", "prompt", "response", "answer"], rows, caption, words=True) if rows else None
