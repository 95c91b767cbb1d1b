"""The page: collects the sections of each experiment, and renders one HTML file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.report.compared.experiments import Experiment
from fl_lightning.report.compared.methods import CONFLICT, Method, logged
from fl_lightning.report.compared.verdict import conflict, table, verdict
from fl_lightning.report.content import arrays, charts, clients, resources, tables
from fl_lightning.report.content.by_round import client_names
from fl_lightning.report.drawing import on_page
from fl_lightning.report.elements import Chart, Section
from fl_lightning.report.templates import environment
from fl_lightning.report.templates import render as filled
from fl_lightning.runs.catalogue import AFTER, catalogue, is_item
from fl_lightning.runs.pictures import COLOURS, ON_DARK

HERE = Path(__file__).parent
SCRIPTS = ("state", "draw", "explore", "cursor", "clients", "export", "page")  # one scope, in this order
# Title and metric groups of each section; a metric's group stands before the slash. Other groups are in the last one.
SECTIONS = {
    "accuracy": ("Accuracy and loss", ("val", "train", "global_train")),
    "conflict": ("Conflict between clients", ("conflict",)),
    "coherence": ("Coherence", ("coherence", "weights")),
    "updates": ("Updates", ("updates",)),
    "fedlaw": ("Learned aggregation", ("fedlaw",)),
    "curvature": ("Curvature", ("hessian",)),
    "personal": ("Examples that clients hold out", ("personal", "held_out", "own")),
    "participation": ("Participation", ("clients",)),
    "traffic": ("Communication", ("bytes",)),
    "other": ("Other measures", ()),
}
COHORT = "Share of each class among the examples of the round's clients, by the clients' weights."
WEIGHTS = "Weight of each client in the sum of the updates; a brighter cell is a larger weight."
# The heat map over the rounds of a section: prefix of the metrics, the thing that their numbers stand for ("client" or
# "class"), title, caption, whether the values are shares.
HEATS = {
    "coherence": ("cohort/share", "class", "Classes of the cohort", COHORT, True),
    "fedlaw": ("fedlaw/weight", "client", "Learned weights λ", WEIGHTS, False),
}
STYLE_OF_MAPS = re.compile(r"(?<=\.textContent=)'[^']*maplibregl[^']*'")  # on every page that loads Plotly
LISTED_METHODS = 6  # largest number of methods that the page's title names
MOST_CURVES = 100  # in a section; thousands would take minutes, and no browser could show them
# Beginnings of the names of metrics that are in the summary or in charts of their own.
NO_CURVE = ("test/", "conflict/layer/", "hessian/eigenvalue_")


@dataclass(frozen=True)
class Part:
    """A part of the page, about one experiment.

    Attributes:
        key: beginning of all ids in the part.
        name: name of the experiment; "" for the only one.
        methods: names of the methods.
        notes: sentences on the runs.
        sections: the sections that have content.
        clients: names of the clients, in the order of their numbers; None if only numbers are shown.
        axes: quantities that curves can have on the x-axis in place of the round, see :func:`resources.axes`.
    """

    key: str
    name: str
    methods: Sequence[str]
    notes: Sequence[str]
    sections: Sequence[Section]
    clients: Sequence[str] | None
    axes: Sequence[Any]


def render(experiments: Sequence[Experiment]) -> str:
    """Render the report as HTML that needs no other file.

    Args:
        experiments: the experiments, at least one; a page about several begins with an index.
    """
    templates = environment()
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    templates.filters["figure"] = on_page.figure
    several, described = len(experiments) > 1, parts(experiments)
    names = described[0].methods
    title = " · ".join(names) if len(names) <= LISTED_METHODS else f"{len(names)} methods"
    return filled(
        templates.get_template("page.html.j2"),
        title=f"{len(described)} experiments" if several else title,
        parts=described,
        index=tables.index(experiments, [f"#{part.key}name" for part in described]) if several else None,
        palette={"light": COLOURS, "dark": ON_DARK},
        js=Markup("\n".join((HERE / "js" / f"{name}.js").read_text() for name in SCRIPTS)),
        plotly=Markup(STYLE_OF_MAPS.sub("''", get_plotlyjs())),
    )


def parts(experiments: Sequence[Experiment]) -> list[Part]:
    """Describe the part of the page about each experiment."""
    of = len(experiments)
    return [_part(each, f"e{at}-" if of > 1 else "", of) for at, each in enumerate(experiments, 1)]


def _part(experiment: Experiment, key: str, of: int) -> Part:
    methods = experiment.methods
    sections = [section for section in _sections(experiment, arrays.FRAME_LETTERS // of) if section]
    names = [method.name for method in methods]
    shown = client_names(methods)
    return Part(key, experiment.name, names, experiment.notes, sections, shown, resources.axes(methods))


def _sections(experiment: Experiment, budget: int) -> Iterator[Section]:
    methods = experiment.methods
    summary = list(dict.fromkeys([*(each.metric for each in experiment.comparisons), CONFLICT]))
    yield _summary(experiment, summary)
    differ, same = tables.settings(methods), tables.shared(methods)
    yield Section("settings", "Settings", tables=_some(differ), folded=_some(same), texts=_configs(methods))
    for key, (title, _) in SECTIONS.items():
        names = [name for name in of_section(key, logged(methods)) if name not in summary]
        names, others = names[:MOST_CURVES], names[MOST_CURVES:]
        notes = {name: note for name in names if (note := charts.constant(name, methods))}
        curves = [charts.curve(name, methods) for name in names if name not in notes]
        shown = _some(*curves, *_special(key, methods, budget))
        rest = f"{len(others):,} more metrics are in metrics.csv alone, from {others[0]} on." if others else ""
        said = [*notes.values(), *_some(_unchanged(key, methods), rest)]
        yield Section(key, title, charts=shown, notes=said)
    drawn = _some(clients.scatter(methods), clients.partition(methods))
    yield Section("clients", "Clients", charts=drawn, clients=clients.listed(methods))
    spent = _some(resources.time_of_round(methods), *resources.by_round(methods))
    yield Section("time", "Time and memory", tables=_some(tables.times(methods)), charts=spent)
    yield Section("environment", "Environment", tables=_some(tables.environment(methods)))


def _some(*found: Any) -> list[Any]:
    return [each for each in found if each]


def _summary(experiment: Experiment, metrics: Sequence[str]) -> Section:
    """Compare the methods, and draw the metrics by which they are compared, and the conflict ratio."""
    compared = experiment.comparisons
    return Section(
        "summary",
        "Summary",
        tables=[table(each) for each in compared],
        charts=_some(*(charts.curve(metric, experiment.methods) for metric in metrics)),
        sentences=[*map(verdict, compared), *_some(conflict(experiment.methods) if experiment.methods[1:] else "")],
        folded=[tables.last_and_best(experiment.methods)],
    )


def of_section(section: str, metrics: Iterable[str]) -> list[str]:
    """Choose the metrics that have a line chart in a section: known metrics first, in the catalogue's order.

    Metrics of the corrected updates are drawn in the chart of the metric before the correction.
    """
    groups = SECTIONS[section][1]
    named = {"test", *(group for _, others in SECTIONS.values() for group in others)}
    order = {name: position for position, name in enumerate(catalogue())}

    def belongs(metric: str) -> bool:
        group = metric.partition("/")[0]
        drawn = metric in order or not metric.startswith(NO_CURVE)
        return drawn and not is_item(metric) and (group in groups if groups else group not in named)

    found = [name for name in metrics if belongs(name)]
    afters = {name + AFTER for name in found}
    alone = [name for name in found if name not in afters]
    return sorted(alone, key=lambda metric: order.get(metric, len(order)))


def _special(section: str, methods: Sequence[Method], budget: int) -> list[Chart | None]:
    """Make the charts of a section other than curves of one metric."""
    if section == "conflict":
        return [charts.layers(methods), arrays.cosines(methods, budget)]
    if section == "curvature":
        return [charts.spectrum(methods), arrays.surfaces(methods, budget)]
    return [charts.over_rounds(methods, *HEATS[section])] if section in HEATS else []


def _unchanged(section: str, methods: Sequence[Method]) -> str:
    prefix, _, title, *_ = HEATS.get(section, ("", "", ""))
    return charts.constant_items(methods, prefix, title) if prefix else ""


def _configs(methods: Sequence[Method]) -> dict[str, str]:
    """Return the config of each method's first run as YAML, by title."""
    found = {}
    for method in methods:
        run = method.runs[0]
        if run.config:
            text = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True)
            found[f"Config of {method.label(run)}"] = text
    return found
