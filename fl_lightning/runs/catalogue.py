"""Catalogue of the metrics that runs log: names, titles, captions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, Literal

from fl_lightning.better import Better
from fl_lightning.runs.folder.yaml_text import read_yaml


@dataclass(frozen=True)
class Metric:
    """A number that a run logs, at most once per round.

    A rule or a monitor lists its metrics in the class attribute ``metrics``, and logs each of them by
    ``orchestrator.log_round``. Two callbacks of a run that list one name are refused. Reports know the metrics of
    shipped callbacks; one of a class of your own has its name for a title there.

    >>> from fl_lightning import FederatedCallback, Metric
    >>> class Halved(FederatedCallback):
    ...     metrics = (Metric("halved/norm", "Norm of the halved update", formula="‖ū‖ / 2"),)
    ...     def update(self, orchestrator, cohort, update):
    ...         orchestrator.log_round("halved/norm", float(update.norm() / 2))
    ...         return update / 2

    Attributes:
        name: ``group/name``; ``<k>`` or the like at the end stands for a client, a class or a layer.
        title: title of the metric for readers.
        caption: meaning of the metric, in a sentence.
        formula: definition for the documentation, in Markdown: a formula and its source.
        percent: whether the metric is a share, shown in per cent.
        better: values of the metric that are better, "lower" as of a loss or "higher" as of an accuracy; "" if neither,
            as of a conflict ratio.
        panel: title of the W&B panel that draws the metric; "" for none.
        paper: name of the metric in the papers' tables, which print shares in per cent; "" if no table has the metric.
        axis: title of the metric's axis in a figure; "" for the metric's name.
    """

    name: str
    title: str
    caption: str = ""
    formula: str = ""
    percent: bool = False
    better: Literal["lower", "higher", ""] = ""
    panel: str = ""
    paper: str = ""
    axis: str = ""

    @property
    def key(self) -> str:
        """The name with a star in place of ``<k>``, under which the catalogue has the metric."""
        return re.sub("<.*>", "*", self.name)


# What modules and the engine log, and below a marker what classes of callbacks declare, which make lists writes.
FILE = Path(__file__).with_name("catalogue.yaml")
AFTER: Final = "_after"  # ends the name of a metric of the updates as rules have corrected them
# Groups in the order in which reports show them; "" stands for all that are not named here.
GROUPS: Final = (
    *("val", "train", "global_train", "test", "conflict", "coherence", "updates", "fedlaw", "clients", "personal"),
    *("held_out", "own", "new", "new_tuned", "domain", "cohort", "weights", "imbalance", "hessian", "parameters", ""),
    *("bytes", "time"),
)
LOADER: Final = re.compile(r"/dataloader_idx_\d+$")  # which Lightning adds where there are several data loaders


@cache
def catalogue() -> Mapping[str, Metric]:
    """Return all known metrics by key, in the order in which reports show them."""
    content = read_yaml(FILE, FILE.read_text(encoding="utf-8"))
    metrics = [Metric(name, **facts) for name, facts in content.items()]
    metrics.sort(key=lambda metric: _rank(metric.name))
    return {metric.key: metric for metric in metrics}


def _rank(name: str) -> int:
    group = name.partition("/")[0]
    return GROUPS.index(group if group in GROUPS else "")


def about(name: str) -> Metric:
    """Look up a metric in the catalogue; the title of an unknown metric is its name.

    >>> about("domain/top1/oslo").title
    'accuracy by domain: oslo'

    Args:
        name: a metric's name, or ``prefix/*`` for a metric that is logged for each client.
    """
    if name in catalogue():
        return catalogue()[name]
    prefix, _, item = name.rpartition("/")
    of_each = catalogue().get(f"{prefix}/*")
    if of_each is None:
        return Metric(name, name)
    return replace(of_each, name=name, title=f"{of_each.title}: {item}")


@cache
def in_papers() -> Mapping[str, Metric]:
    """Return the metrics of the papers' tables, by their names there."""
    return {metric.paper: metric for metric in catalogue().values() if metric.paper}


def metric_and_factor(name: str) -> tuple[str, float]:
    """Return the metric that a table's column shows, and the factor between them: papers print shares in per cent.

    Args:
        name: name of the metric in the papers' tables, or the metric's own name.

    >>> metric_and_factor("top1")
    ('val/top1', 100.0)
    >>> metric_and_factor("val/top1")
    ('val/top1', 1.0)
    """
    if (metric := in_papers().get(name)) is None:
        return name, 1.0
    return metric.name, 100.0 if metric.percent else 1.0


def axis_title(name: str) -> str:
    """Return the title of a metric's axis in a figure, given a name as in :func:`metric_and_factor`."""
    metric, factor = metric_and_factor(name)
    title = about(metric).axis
    return f"{title} (%)" if title and factor != 1 else title or name


def better_values(name: str, recorded: Mapping[str, Better | None]) -> Literal["lower", "higher", ""] | None:
    """Tell which values of a metric are better, never judging by words in its name.

    >>> better_values("val/loss", {}), better_values("conflict/ratio", {}), better_values("val/bce", {})
    ('lower', '', None)
    >>> better_values("val/bce", {"val/bce": "lower"}), better_values("val/loss", {"val/loss": None})
    ('lower', None)

    Args:
        name: the metric's name.
        recorded: the words of the run's module, or of the user, by metric, None for those without; a name may be
            ``prefix/*``. Only metrics that are not in there are looked up in the catalogue, by their whole names.

    Returns:
        "lower" or "higher"; "" if neither is better; None if nobody says.
    """
    name = LOADER.sub("", name)
    of_each = f"{name.rpartition('/')[0]}/*"
    for key in (name, of_each):
        if key in recorded:
            return recorded[key]
    for key in (name, of_each):
        if key in catalogue():
            return catalogue()[key].better
    return None


def corrected(name: str) -> str | None:
    """Name the metric of the updates as rules have corrected them, given that of the updates as they came.

    >>> corrected("conflict/ratio"), corrected("val/top1")
    ('conflict/ratio_after', None)
    """
    after = name + AFTER
    return after if after in catalogue() else None


def is_item(name: str, prefix: str = ".*") -> bool:
    """Tell whether a metric is ``prefix/<n>``, the value of one client or class among many.

    Args:
        name: the metric's name.
        prefix: regular expression for the part before the number.

    >>> is_item("clients/top1/3"), is_item("clients/top1/3", "fedlaw/weight"), is_item("val/top1")
    (True, False, False)
    """
    return re.fullmatch(rf"(?:{prefix})/\d+", name) is not None
