"""The page: collects the sections of each experiment, and renders one HTML file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.report.compared.experiments import Experiment
from fl_lightning.report.compared.methods import CONFLICT, Method, metric_names
from fl_lightning.report.compared.verdict import conflict, table, verdict
from fl_lightning.report.content import arrays, charts, clients, resources, tables
from fl_lightning.report.content.by_round import client_names
from fl_lightning.report.drawing import on_page
from fl_lightning.report.elements import Chart, Content, OtherAxis, Section, Table, for_scripts
from fl_lightning.report.templates import environment
from fl_lightning.report.templates import render as render_template
from fl_lightning.runs.catalogue import catalogue, corrected, is_item
from fl_lightning.runs.pictures import COLOURS, ON_DARK

HERE = Path(__file__).parent
SCRIPTS = ("state", "draw", "explore", "cursor", "clients", "export", "page")  # one scope, in this order
# Title and metric groups of each section; a metric's group stands before the slash. Other groups are in the last one.
SECTIONS = {
    "accuracy": ("Accuracy and loss", ("val", "train", "global_train", "domain")),
    "conflict": ("Conflict between clients", ("conflict",)),
    "coherence": ("Coherence", ("coherence", "weights")),
    "updates": ("Updates", ("updates",)),
    "fedlaw": ("Learned aggregation", ("fedlaw",)),
    "curvature": ("Curvature", ("hessian",)),
    "personal": ("Examples that clients hold out", ("personal", "held_out", "own", "new", "new_tuned")),
    "answers": ("Answers of the language model", ("generation",)),
    "participation": ("Participation", ("clients",)),
    "traffic": ("Communication", ("bytes",)),
    "other": ("Other measures", ()),
}
COHORT = "Share of each class among the examples of the round's clients, by the clients' weights."
WEIGHTS = "Weight of each client in the sum of the updates; a brighter cell is a larger weight."
# Metrics that have a heat map over the rounds, by section.
HEATS = {
    "coherence": charts.NumberedMetrics("cohort/share", "class", "Classes of the cohort", COHORT, percent=True),
    "fedlaw": charts.NumberedMetrics("fedlaw/weight", "client", "Learned weights λ", WEIGHTS),
}
STYLE_OF_MAPS = re.compile(r"(?<=\.textContent=)'[^']*maplibregl[^']*'")  # on every page that loads Plotly
LISTED_METHODS = 6  # largest number of methods that the page's title names
MOST_CURVES = 100  # in a section; thousands would take minutes, and no browser could show them
# Beginnings of the names of metrics that are in the summary or in charts of their own.
NO_CURVE = ("test/", charts.LAYER, charts.LAYER_AFTER, charts.EIGENVALUE)


@dataclass(frozen=True)
class Part:
    """A part of the page, about one experiment.

    Attributes:
        key: beginning of all ids in the part.
        experiment: the experiment.
        methods: names of the methods.
        sections: the sections that have content.
        clients: names of the clients, in the order of their numbers; None if only numbers are shown.
        axes: quantities that curves can have on the x-axis in place of the round, see :func:`resources.axes`.
    """

    key: str
    experiment: Experiment
    methods: Sequence[str]
    sections: Sequence[Section]
    clients: Sequence[str] | None
    axes: Sequence[OtherAxis]


def parts_of_page(experiments: Sequence[Experiment]) -> list[Part]:
    """Describe the part of the page about each experiment: what the page shows, and what figures are made of."""
    letters = arrays.FRAME_LETTERS // len(experiments)
    parts = []
    for number, experiment in enumerate(experiments, 1):
        key = f"e{number}-" if len(experiments) > 1 else ""
        parts.append(_part(experiment, key, letters))
    return parts


def render(parts: Sequence[Part]) -> str:
    """Render the report as HTML that needs no other file.

    Args:
        parts: the parts of the page, at least one; a page of several begins with an index.
    """
    templates = environment()
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False, "default": for_scripts}
    templates.filters["figure"] = on_page.figure
    several = len(parts) > 1
    links = [f"#{part.key}name" for part in parts]
    return render_template(
        templates.get_template("page.html.j2"),
        title=f"{len(parts)} experiments" if several else _title(parts[0]),
        parts=parts,
        index=tables.index([part.experiment for part in parts], links) if several else None,
        palette={"light": COLOURS, "dark": ON_DARK},
        js=Markup("\n".join((HERE / "js" / f"{name}.js").read_text() for name in SCRIPTS)),
        plotly=Markup(STYLE_OF_MAPS.sub("''", get_plotlyjs())),
    )


def _title(part: Part) -> str:
    """Title a page about one experiment."""
    if len(part.methods) > LISTED_METHODS:
        return f"{len(part.methods)} methods"
    return " · ".join(part.methods)


def _part(experiment: Experiment, key: str, letters: int) -> Part:
    """Describe a part of the page; the frames of a chart have no more than this number of letters."""
    methods = experiment.methods
    return Part(
        key=key,
        experiment=experiment,
        methods=[method.name for method in methods],
        sections=[section for section in _sections(experiment, letters) if section],
        clients=client_names(methods),
        axes=resources.axes(methods),
    )


def _sections(experiment: Experiment, letters: int) -> Iterator[Section]:
    """Describe the sections of a part in their order, with and without content."""
    methods = experiment.methods
    compared = [comparison.metric for comparison in experiment.comparisons]
    in_summary = list(dict.fromkeys([*compared, CONFLICT]))
    yield _summary(experiment, in_summary)
    yield Section(
        "settings",
        "Settings",
        tables=_filled(tables.settings(methods)),
        folded=_filled(tables.shared_settings(methods)),
        texts=_configs(methods),
    )
    for key in SECTIONS:
        metrics = [name for name in metrics_of_section(key, metric_names(methods)) if name not in in_summary]
        yield _section_of_metrics(key, metrics, methods, letters)
    yield Section(
        "clients",
        "Clients",
        charts=_filled(clients.scatter(methods), clients.partition(methods)),
        clients=clients.clients_table(methods),
    )
    yield Section(
        "time",
        "Time and memory",
        tables=_filled(tables.times(methods)),
        charts=_filled(resources.time_of_round(methods), *resources.by_round(methods)),
    )
    yield Section("environment", "Environment", tables=_filled(tables.environment(methods)))


def _filled(*contents: Content | None) -> list[Content]:
    """Return the contents that are there: no None, and no empty text."""
    return [content for content in contents if content]


def _summary(experiment: Experiment, metrics: Sequence[str]) -> Section:
    """Compare the methods, and draw the metrics by which they are compared, and the conflict ratio."""
    methods = experiment.methods
    sentences = [verdict(comparison) for comparison in experiment.comparisons]
    if len(methods) > 1:
        sentences += _filled(conflict(methods))
    return Section(
        "summary",
        "Summary",
        tables=[table(comparison) for comparison in experiment.comparisons],
        charts=_filled(*(charts.curve(metric, methods) for metric in metrics)),
        sentences=sentences,
        folded=[tables.last_and_best(methods)],
    )


def _section_of_metrics(key: str, metrics: Sequence[str], methods: Sequence[Method], letters: int) -> Section:
    """Draw the metrics of a section, up to MOST_CURVES; a sentence stands for a metric that never changes."""
    title, _ = SECTIONS[key]
    drawn = []
    notes = []
    for metric in metrics[:MOST_CURVES]:
        constant = charts.say_constant(metric, methods)
        if constant:
            notes.append(constant)
        else:
            drawn.append(charts.curve(metric, methods))
    drawn += _special_charts(key, methods, letters)
    if key in HEATS:
        notes += _filled(charts.say_constant_items(methods, HEATS[key]))
    others = metrics[MOST_CURVES:]
    if others:
        notes.append(f"{len(others):,} more metrics are in metrics.csv alone, from {others[0]} on.")
    return Section(key, title, tables=_tables(key, methods), charts=_filled(*drawn), notes=notes)


def metrics_of_section(section: str, metrics: Iterable[str]) -> list[str]:
    """Choose the metrics that have a line chart in a section: known metrics first, in the catalogue's order.

    Metrics of the corrected updates are drawn in the chart of the metric before the correction.
    """
    _, groups = SECTIONS[section]
    of_other_sections = {"test", *(group for _, others in SECTIONS.values() for group in others)}
    order = {name: place for place, name in enumerate(catalogue())}

    def belongs(metric: str) -> bool:
        if is_item(metric) or (metric not in order and metric.startswith(NO_CURVE)):
            return False
        group = metric.partition("/")[0]
        return group in groups if groups else group not in of_other_sections

    chosen = [name for name in metrics if belongs(name)]
    after_correction = {corrected(name) for name in chosen}
    alone = [name for name in chosen if name not in after_correction]
    return sorted(alone, key=lambda metric: order.get(metric, len(order)))


def _tables(section: str, methods: Sequence[Method]) -> list[Table]:
    """Make the tables of a section of metrics."""
    if section == "conflict":
        return _filled(tables.adapters(methods))
    return _filled(tables.answers(methods)) if section == "answers" else []


def _special_charts(section: str, methods: Sequence[Method], letters: int) -> list[Chart | None]:
    """Make the charts of a section other than curves of one metric."""
    if section == "conflict":
        return [charts.layers(methods), arrays.cosines(methods, letters)]
    if section == "curvature":
        return [charts.spectrum(methods), arrays.surfaces(methods, letters)]
    if section in HEATS:
        return [charts.over_rounds(methods, HEATS[section])]
    return []


def _configs(methods: Sequence[Method]) -> dict[str, str]:
    """Return the config of each method's first run as YAML, by title."""
    texts = {}
    for method in methods:
        run = method.runs[0]
        if run.config:
            text = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True)
            texts[f"Config of {method.label(run)}"] = text
    return texts
