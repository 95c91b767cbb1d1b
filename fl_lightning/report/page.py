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

from fl_lightning.report import charts, clients, explorers, holdings, resources, screen, tables
from fl_lightning.report.frames import client_names
from fl_lightning.report.index import Experiment
from fl_lightning.report.methods import Method
from fl_lightning.report.parts import Chart, Section, Table
from fl_lightning.report.templates import environment
from fl_lightning.report.templates import render as filled
from fl_lightning.report.verdict import table, verdict
from fl_lightning.runs.catalogue import catalogue, is_item
from fl_lightning.runs.critical import critical_round
from fl_lightning.runs.pictures import COLOURS, ON_DARK

COHERENCE = "coherence/local"
HERE = Path(__file__).parent
SCRIPTS = ("state", "draw", "explore", "cursor", "clients", "export", "page")  # one scope, in this order
# Title and metric groups of each section; a metric's group stands before the slash. Other groups are in the last one.
SECTIONS = {
    "accuracy": ("Accuracy and loss", ("val", "train", "global_train")),
    "conflict": ("Conflict between clients", ("conflict",)),
    "coherence": ("Coherence", ("coherence",)),
    "updates": ("Updates", ("updates",)),
    "fedlaw": ("Learned aggregation", ("fedlaw",)),
    "curvature": ("Curvature", ("hessian",)),
    "personal": ("Examples that clients hold out", ("held_out", "own")),
    "participation": ("Participation", ("clients",)),
    "traffic": ("Communication", ("bytes",)),
    "other": ("Other measures", ()),
}
# Heat maps over the rounds of a section: prefix of the metrics, the thing that their numbers stand for ("client" or
# "class"), title, caption, whether the values are shares.
HEATS = {
    "coherence": (
        (
            *("cohort/share", "class", "Classes of the cohort"),
            *("Share of each class among the examples of the round's clients, by the clients' weights.", True),
        ),
    ),
    "fedlaw": (
        (
            *("fedlaw/weight", "client", "Learned weights λ"),
            *("Weight of each client in the sum of the updates; a brighter cell is a larger weight.", False),
        ),
    ),
}
STYLE_OF_MAPS = re.compile(r"(?<=\.textContent=)'[^']*maplibregl[^']*'")  # on every page that loads Plotly
LISTED = 6  # largest number of methods that the page's title names
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
    templates.filters["figure"] = screen.figure
    several, described = len(experiments) > 1, parts(experiments)
    links = [f"#{part.key}name" for part in described]
    names = described[0].methods
    many = f"{len(described)} experiments" if several else f"{len(names)} methods" if len(names) > LISTED else ""
    title = many or " · ".join(names)
    return filled(
        templates.get_template("page.html.j2"),
        title=title,
        parts=described,
        index=tables.index(experiments, links) if several else None,
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
    sections = [section for section in _sections(experiment, explorers.BUDGET // of) if section]
    names = [method.name for method in methods]
    shown = client_names(methods)
    return Part(key, experiment.name, names, experiment.notes, sections, shown, resources.axes(methods))


def _sections(experiment: Experiment, budget: int) -> Iterator[Section]:
    methods = experiment.methods
    yield _summary(experiment)
    yield _settings(methods)
    for key, (title, _) in SECTIONS.items():
        names = [name for name in of_section(key, _names(methods)) if name not in _main(experiment)]
        notes = {name: note for name in names if (note := charts.constant(name, methods))}
        curves = [_curve(name, methods) for name in names if name not in notes]
        shown = [*curves, *_special(key, methods, budget)]
        said = [*notes.values(), *_unchanged(key, methods)]
        yield Section(key, title, charts=[chart for chart in shown if chart], notes=said)
    drawn = [clients.scatter(methods), holdings.partition(methods)]
    yield Section("clients", "Clients", charts=[each for each in drawn if each], clients=clients.listed(methods))
    spent = [resources.time_of_round(methods), resources.seconds_by_round(methods), *resources.memory(methods)]
    yield Section(
        "time", "Time and memory", tables=_some(tables.times(methods)), charts=[each for each in spent if each]
    )
    yield Section("environment", "Environment", tables=_some(tables.environment(methods)))


def _some(table: Table | None) -> list[Table]:
    return [table] if table else []


def _summary(experiment: Experiment) -> Section:
    compared = experiment.comparisons
    charts = [_curve(metric, experiment.methods) for metric in _main(experiment)]
    return Section(
        "summary",
        "Summary",
        tables=[table(each) for each in compared],
        charts=[chart for chart in charts if chart],
        sentences=[verdict(each) for each in compared],
        folded=[tables.last_and_best(experiment.methods)],
    )


def _main(experiment: Experiment) -> list[str]:
    """Return the metrics that the summary draws: the one by which methods are compared, and the conflict ratio."""
    return list(dict.fromkeys([*(each.metric for each in experiment.comparisons), charts.CONFLICT]))


def _settings(methods: Sequence[Method]) -> Section:
    differ, same = tables.settings(methods), tables.shared(methods)
    return Section("settings", "Settings", tables=_some(differ), folded=_some(same), texts=_configs(methods))


def _names(methods: Sequence[Method]) -> list[str]:
    return list(dict.fromkeys(name for method in methods for run in method.runs for name in run.names))


def _curve(name: str, methods: Sequence[Method]) -> Chart | None:
    chart = charts.curve(name, methods)
    return _with_critical_rounds(chart, methods) if chart and name == COHERENCE else chart


def of_section(section: str, metrics: Iterable[str]) -> list[str]:
    """Choose the metrics that have a line chart in a section: known metrics first, in the catalogue's order.

    Metrics of the corrected updates are drawn in the chart of the metric before the correction.
    """
    groups = SECTIONS[section][1]
    named = {group for _, others in SECTIONS.values() for group in others}
    order = {name: position for position, name in enumerate(catalogue())}

    def belongs(metric: str) -> bool:
        group = metric.partition("/")[0]
        return group in groups if groups else group not in named and group != "test"

    single = [name for name in dict.fromkeys(metrics) if not is_item(name)]
    found = [name for name in single if belongs(name) and (name in order or not name.startswith(NO_CURVE))]
    alone = [
        name
        for name in found
        if name.removesuffix(charts.AFTER) == name or name.removesuffix(charts.AFTER) not in found
    ]
    return sorted(alone, key=lambda metric: order.get(metric, len(order)))


def _special(section: str, methods: Sequence[Method], budget: int) -> list[Chart | None]:
    """Make the charts of a section other than curves of one metric."""
    shown = [holdings.over_rounds(methods, *heat) for heat in HEATS.get(section, ())]
    if section == "conflict":
        return [charts.layers(methods), explorers.cosines(methods, budget)]
    if section == "curvature":
        return [charts.spectrum(methods), explorers.surfaces(methods, budget)]
    return [*shown]


def _unchanged(section: str, methods: Sequence[Method]) -> list[str]:
    notes = [holdings.constant_items(methods, prefix, title) for prefix, _, title, *_ in HEATS.get(section, ())]
    return [note for note in notes if note]


def _with_critical_rounds(chart: Chart, methods: Sequence[Method]) -> Chart:
    points = {}
    for method in methods:
        mean = method.band(COHERENCE)["mean"]
        if (position := critical_round(mean.tolist())) is not None:
            points[method.name] = (int(mean.index[position - 1]), float(mean.iloc[position - 1]))
    return charts.mark(chart, points, "critical round, the first with a negative mean over five rounds")


def _configs(methods: Sequence[Method]) -> dict[str, str]:
    """Return the config of each method's first run as YAML, by title."""
    first = {method.label(method.runs[0]): method.runs[0].config for method in methods}
    return {
        f"Config of {name}": yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        for name, config in first.items()
        if config
    }
