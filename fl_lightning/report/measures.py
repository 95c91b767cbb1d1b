"""What the metrics are called on the page, what they mean, and where they stand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fl_lightning.report.runs import is_item


@dataclass(frozen=True)
class Measure:
    """A metric's chart.

    Attributes:
        title: in words.
        caption: what it means, in a sentence.
        percent: it is a share, to be read in per cent.
    """

    title: str
    caption: str = ""
    percent: bool = False


KNOWN = {
    "val/top1": Measure("Validation accuracy", "Share of examples whose most likely class is the right one.", True),
    "val/top3": Measure("Validation accuracy, top 3", "The right class is among the three most likely ones.", True),
    "val/loss": Measure("Validation loss", "Mean loss over the validation examples: lower is better."),
    "train/loss": Measure("Training loss", "Mean over the clients' local steps, weighted by their examples."),
    "train/top1": Measure("Training accuracy", "Mean over the clients' local steps, weighted by their examples.", True),
    "test/top1": Measure("Test accuracy", "", True),
    "test/top3": Measure("Test accuracy, top 3", "", True),
    "test/loss": Measure("Test loss"),
    "conflict/ratio": Measure(
        "Conflict ratio", "Share of the pairs of clients whose updates point against each other.", True
    ),
    "conflict/ratio_after": Measure(
        "Conflict ratio, after correction", "The same share among the updates as the rules have corrected them.", True
    ),
    "conflict/weighted_ratio": Measure(
        "Weighted conflict ratio", "As the conflict ratio, each pair by the product of its aggregation weights.", True
    ),
    "conflict/weighted_ratio_after": Measure(
        "Weighted conflict ratio, after correction", "The same of the corrected updates.", True
    ),
    "conflict/mean_cosine": Measure("Mean cosine", "Over all pairs of updates: 1 is the same direction, 0 unrelated."),
    "conflict/mean_cosine_after": Measure("Mean cosine, after correction", "The same of the corrected updates."),
    "conflict/min_cosine": Measure("Smallest cosine", "Of the two updates that disagree most: −1 is opposite."),
    "conflict/min_cosine_after": Measure("Smallest cosine, after correction", "The same of the corrected updates."),
    "conflict/removed": Measure(
        "Size of the correction", "How far the rules moved an update, relative to its length; mean over the clients."
    ),
    "conflict/angle": Measure(
        "Angle to the plain mean", "Degrees between the combined update and the mean weighted by examples alone."
    ),
    "coherence/local": Measure(
        "Client coherence",
        "Positive while the clients' updates strengthen each other (FedLAW, Definition 5.1).",
    ),
    "coherence/heterogeneity": Measure(
        "Heterogeneity coherence", "Cosine between the cohort's mix of classes and the federation's; 1 is equal."
    ),
    "updates/norm_mean": Measure("Mean length of an update", "How far a client's training moves the model."),
    "updates/norm_max": Measure("Largest length of an update", "The client that moves the model farthest."),
    "updates/drift": Measure("Client drift", "Mean distance of a client's update from the combined one."),
    "fedlaw/gamma": Measure("Shrinking factor γ", "Below 1 the server shrinks the new model, as weight decay does."),
    "fedlaw/ratio": Measure("Update against shrinking", "The global update's length over that of the shrinking."),
    "fedlaw/global_gradient": Measure("Length of the global update", "Of the part of the step that clients make."),
    "fedlaw/shrinking_gradient": Measure("Length of the shrinking", "Of the part of the step that γ makes."),
    "fedlaw/largest_weight": Measure("Largest weight", "The largest of the weights λ that the server learned."),
    "hessian/eigenvalue_1": Measure(
        "Largest eigenvalue", "Of the Hessian of the loss: the sharpest direction; flat minima have small ones."
    ),
    "hessian/ratio_1_5": Measure("Ratio of the eigenvalues 1 and 5", "Small if curvature is alike in many directions."),
}

# Title and groups of metrics; each group is what stands before the slash. What no section names is in the last one.
SECTIONS = {
    "accuracy": ("Accuracy and loss", ("val", "train")),
    "conflict": ("Conflict between clients", ("conflict",)),
    "coherence": ("Coherence", ("coherence",)),
    "updates": ("Updates", ("updates",)),
    "fedlaw": ("Learned aggregation", ("fedlaw",)),
    "curvature": ("Curvature", ("hessian",)),
    "other": ("Other measures", ()),
}
# In the summary or in charts of their own.
ELSEWHERE = ("test/", "conflict/layer/", "hessian/eigenvalue_")


def about(metric: str) -> Measure:
    """What is known of a metric; its name is the title of one that is not."""
    return KNOWN.get(metric, Measure(metric))


def lower_is_better(metric: str) -> bool:
    """By its name."""
    return any(word in metric.lower() for word in ("loss", "error"))


def of_section(section: str, metrics: Iterable[str]) -> list[str]:
    """Those that have a line chart in a section: the known ones first, in their order."""
    groups = SECTIONS[section][1]
    named = {group for _, others in SECTIONS.values() for group in others}
    order = {name: position for position, name in enumerate(KNOWN)}

    def belongs(metric: str) -> bool:
        group = metric.partition("/")[0]
        return group in groups if groups else group not in named and group != "test"

    single = [name for name in dict.fromkeys(metrics) if not is_item(name)]
    found = [name for name in single if belongs(name) and (name in KNOWN or not name.startswith(ELSEWHERE))]
    return sorted(found, key=lambda metric: order.get(metric, len(order)))
