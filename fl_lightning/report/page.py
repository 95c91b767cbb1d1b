"""The page: collects the sections of the report, and renders one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.callbacks.monitors.coherence import critical_round
from fl_lightning.report import charts, explorers, resources, tables
from fl_lightning.report.comparison import Comparison
from fl_lightning.report.methods import Method
from fl_lightning.report.parts import Chart, Section
from fl_lightning.report.verdict import table, verdict
from fl_lightning.runs.catalogue import KNOWN, is_item

COHERENCE = "coherence/local"
HERE = Path(__file__).parent
# Title and metric groups of each section; a metric's group stands before the slash. Other groups are in the last one.
SECTIONS = {
    "accuracy": ("Accuracy and loss", ("val", "train")),
    "conflict": ("Conflict between clients", ("conflict",)),
    "coherence": ("Coherence", ("coherence",)),
    "updates": ("Updates", ("updates",)),
    "fedlaw": ("Learned aggregation", ("fedlaw",)),
    "curvature": ("Curvature", ("hessian",)),
    "other": ("Other measures", ()),
}
# Beginnings of the names of metrics that are in the summary or in charts of their own.
NO_CURVE = ("test/", "conflict/layer/", "hessian/eigenvalue_")


def render(methods: Sequence[Method], notes: Sequence[str] = (), comparisons: Sequence[Comparison] = ()) -> str:
    """Render the report as HTML that needs no other file.

    Args:
        methods: the methods, at least one.
        notes: sentences on the runs for the reader.
        comparisons: the methods compared with a baseline, one comparison per problem.
    """
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html.j2").render(
        title=" · ".join(method.name for method in methods),
        methods=methods,
        notes=notes,
        sections=[section for section in _sections(methods, comparisons) if section],
        version=version("fl-lightning"),
        css=Markup((HERE / "page.css").read_text()),
        js=Markup((HERE / "page.js").read_text()),
        plotly=Markup(get_plotlyjs()),
    )


def _sections(methods: Sequence[Method], comparisons: Sequence[Comparison]) -> Iterator[Section]:
    said = " ".join(map(verdict, comparisons))
    yield Section(
        "summary", "Summary", said, tables=list(map(table, comparisons)), folded=[tables.last_and_best(methods)]
    )
    chosen, environment, times = tables.settings(methods), tables.environment(methods), tables.times(methods)
    yield Section("settings", "Settings", tables=[chosen] if chosen else [], texts=_configs(methods))
    for key, (title, _) in SECTIONS.items():
        shown = [*_curves(key, methods), *_special(key, methods)]
        yield Section(key, title, charts=[chart for chart in shown if chart])
    held = explorers.partition(methods)
    yield Section("clients", "Clients", charts=[held] if held else [], folded=tables.clients(methods))
    spent = [resources.time_of_round(methods), *resources.memory(methods)]
    yield Section("time", "Time and memory", tables=[times] if times else [], charts=[each for each in spent if each])
    yield Section("environment", "Environment", tables=[environment] if environment else [])


def _curves(section: str, methods: Sequence[Method]) -> Iterator[Chart | None]:
    names = [name for method in methods for run in method.runs for name in run.names]
    for name in of_section(section, names):
        chart = charts.curve(name, methods)
        yield _with_critical_rounds(chart, methods) if chart and name == COHERENCE else chart


def of_section(section: str, metrics: Iterable[str]) -> list[str]:
    """Choose the metrics that have a line chart in a section: known metrics first, in the catalogue's order."""
    groups = SECTIONS[section][1]
    named = {group for _, others in SECTIONS.values() for group in others}
    order = {name: position for position, name in enumerate(KNOWN)}

    def belongs(metric: str) -> bool:
        group = metric.partition("/")[0]
        return group in groups if groups else group not in named and group != "test"

    single = [name for name in dict.fromkeys(metrics) if not is_item(name)]
    found = [name for name in single if belongs(name) and (name in KNOWN or not name.startswith(NO_CURVE))]
    return sorted(found, key=lambda metric: order.get(metric, len(order)))


def _special(section: str, methods: Sequence[Method]) -> list[Chart | None]:
    """Make the charts of a section other than curves of one metric."""
    if section == "conflict":
        return [charts.layers(methods), explorers.cosines(methods)]
    if section == "coherence":
        mix = "The mix of classes that the round's clients hold, by their weights."
        return [explorers.over_rounds(methods, "cohort/share", "class", "Classes of the cohort", mix, percent=True)]
    if section == "fedlaw":
        learned = "What each client counts in the sum; bright clients count most."
        return [explorers.over_rounds(methods, "fedlaw/weight", "client", "Learned weights λ", learned)]
    if section == "curvature":
        return [charts.spectrum(methods), explorers.surfaces(methods)]
    return []


def _with_critical_rounds(chart: Chart, methods: Sequence[Method]) -> Chart:
    points = {}
    for method in methods:
        mean = method.band(COHERENCE)["mean"]
        if (position := critical_round(mean.tolist())) is not None:
            points[method.name] = (int(mean.index[position - 1]), float(mean.iloc[position - 1]))
    return charts.mark(chart, points, "critical round, the first with a negative mean over five rounds")


def _configs(methods: Sequence[Method]) -> dict[str, str]:
    """The config of each method's first run."""
    first = {method.label(method.runs[0]): method.runs[0].config for method in methods}
    return {
        f"Config of {name}": yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        for name, config in first.items()
        if config
    }
