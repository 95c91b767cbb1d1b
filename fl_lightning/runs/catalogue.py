"""Catalogue of the metrics that runs log: names, titles, captions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Metric:
    """A number that a run logs, at most once per round.

    Attributes:
        name: ``group/name``; a star at the end stands for a client, a class, a layer or a rank.
        title: title of the metric for readers.
        caption: meaning of the metric, in a sentence.
        percent: whether the metric is a share, shown in per cent.
        panel: title of the W&B panel that draws the metric; "" for none.
        paper: name of the metric in the papers' tables, which print shares in per cent; "" if no table has the metric.
        axis: title of the metric's axis in a figure; "" for the metric's name.
    """

    name: str
    title: str
    caption: str = ""
    percent: bool = False
    panel: str = ""
    paper: str = ""
    axis: str = ""


def _on_held_out(group: str, title: str, caption: str) -> Iterator[Metric]:
    """Make the metrics of PersonalEvaluation for the global model, or for the participants' own models."""
    over = {"mean": "mean", "worst": "worst tenth of the clients", "spread": "standard deviation over the clients"}
    for name, called in (("top1", "accuracy"), ("top3", "top-3 accuracy"), ("loss", "loss")):
        whole, percent = f"{title} {called}", name != "loss"
        yield Metric(f"{group}/{name}/*", whole.lower(), percent=percent, panel=f"{whole.lower()} of clients")
        for measure, words in over.items():
            about = f"{caption}: {words}, each client counted once."
            yield Metric(f"{group}/{name}_{measure}", f"{whole}: {words}", about, percent, panel=whole.lower())


# The metrics in the order in which reports show them.
CATALOGUE: Final = (
    Metric(
        "val/top1",
        "Validation accuracy",
        "Share of examples whose most likely class is the right one.",
        percent=True,
        panel="accuracy",
        paper="top1",
        axis="top-1 accuracy",
    ),
    Metric(
        "val/top3",
        "Validation accuracy, top 3",
        "Share of examples whose right class is among the three most likely ones.",
        percent=True,
        panel="top-3 accuracy",
        paper="top3",
    ),
    Metric("val/loss", "Validation loss", "Mean loss over the validation examples: lower is better.", panel="loss"),
    Metric(
        "val/map50",
        "Validation mAP50",
        "Mean average precision at an overlap of 0.5: 1 is best, -1 without any box.",
        paper="map50",
    ),
    Metric(
        "train/loss",
        "Training loss",
        "Mean over the clients' local steps, weighted by their examples.",
        panel="loss",
    ),
    Metric(
        "train/top1",
        "Training accuracy",
        "Mean over the clients' local steps, weighted by their examples.",
        percent=True,
        panel="local training accuracy",
    ),
    Metric(
        "global_train/top1",
        "Global model's training accuracy",
        "Share of all clients' training examples whose most likely class under the new global model is the right one.",
        percent=True,
        panel="global model on training examples: accuracy",
        paper="train_top1",
        axis="training accuracy of the global model",
    ),
    Metric(
        "global_train/top3",
        "Global model's training accuracy, top 3",
        "Share of all clients' training examples whose right class is among the three most likely ones.",
        percent=True,
        panel="global model on training examples: accuracy",
    ),
    Metric(
        "global_train/loss",
        "Global model's training loss",
        "Mean loss of the new global model over all clients' training examples.",
        panel="global model on training examples: loss",
    ),
    Metric("test/top1", "Test accuracy", percent=True),
    Metric("test/top3", "Test accuracy, top 3", percent=True),
    Metric("test/loss", "Test loss"),
    Metric(
        "conflict/ratio",
        "Conflict ratio",
        "Share of the pairs of clients whose updates point against each other (negative cosine).",
        percent=True,
        panel="conflict ratio",
    ),
    Metric(
        "conflict/ratio_after",
        "Conflict ratio, after correction",
        "Share of the pairs of corrected updates that point against each other (negative cosine).",
        percent=True,
        panel="conflict ratio",
    ),
    Metric(
        "conflict/weighted_ratio",
        "Weighted conflict ratio",
        "Conflict ratio in which each pair is weighted by the product of its two aggregation weights.",
        percent=True,
        panel="conflict ratio, weighted",
    ),
    Metric(
        "conflict/mean_cosine",
        "Mean cosine",
        "Mean cosine over all pairs of updates: 1 is the same direction, 0 is unrelated.",
        panel="mean cosine",
    ),
    Metric(
        "conflict/mean_cosine_after",
        "Mean cosine, after correction",
        "Mean cosine over all pairs of corrected updates.",
        panel="mean cosine",
    ),
    Metric(
        "conflict/min_cosine",
        "Smallest cosine",
        "Cosine of the two updates that disagree most: −1 is opposite.",
        panel="least cosine",
        paper="min_cosine",
    ),
    Metric(
        "conflict/min_cosine_after",
        "Smallest cosine, after correction",
        "Cosine of the two corrected updates that disagree most.",
        panel="least cosine",
    ),
    Metric(
        "conflict/removed",
        "Size of the correction",
        "How far the rules moved an update, relative to the update's length; mean over the clients.",
        panel="removed by the rules",
    ),
    Metric(
        "conflict/angle",
        "Angle to the plain mean",
        "Degrees between the combined update and the mean of the updates weighted by examples.",
        panel="turned by the rules, in degrees",
    ),
    Metric("conflict/layer/*", "Conflict ratio by layer", percent=True, panel="conflict ratio by layer"),
    Metric(
        "coherence/local",
        "Client coherence",
        "Positive while the clients' updates strengthen each other (FedLAW, Definition 5.1).",
        panel="coherence",
    ),
    Metric(
        "coherence/heterogeneity",
        "Heterogeneity coherence",
        "Cosine between the class shares of the cohort and of the federation; 1 if they are equal.",
        panel="coherence",
    ),
    Metric(
        "updates/norm_mean",
        "Mean length of an update",
        "How far a client's training moves the model; mean over the clients.",
        panel="size and drift of updates",
    ),
    Metric(
        "updates/norm_max",
        "Largest length of an update",
        "The largest distance that one client's training moves the model.",
        panel="size and drift of updates",
    ),
    Metric(
        "updates/drift",
        "Client drift",
        "Mean distance of the clients' updates from the combined update.",
        panel="size and drift of updates",
    ),
    Metric(
        "fedlaw/gamma",
        "Shrinking factor γ",
        "Below 1 the server shrinks the new model, as weight decay does.",
        panel="shrinking factor γ",
        paper="gamma_learned",
    ),
    Metric("fedlaw/weight/*", "weight", panel="weights λ"),
    Metric(
        "fedlaw/ratio",
        "Update against shrinking",
        "Length of the global update divided by the length of the shrinking.",
        panel="ratio of the two parts",
    ),
    Metric(
        "fedlaw/global_gradient",
        "Length of the global update",
        "Length of the part of the server's step that the clients' updates make.",
        panel="two parts of the step",
    ),
    Metric(
        "fedlaw/shrinking_gradient",
        "Length of the shrinking",
        "Length of the part of the server's step that γ makes.",
        panel="two parts of the step",
    ),
    Metric(
        "fedlaw/largest_weight",
        "Largest weight",
        "The largest of the weights λ that the server learned.",
        panel="largest weight",
    ),
    Metric("clients/selected", "Clients selected", "Clients drawn for the round.", panel="clients of a round"),
    Metric("clients/arrived", "Clients that arrive", "Clients whose updates are in time.", panel="clients of a round"),
    Metric(
        "clients/dropped",
        "Clients that drop out",
        "Selected clients that never send an update.",
        panel="clients of a round",
    ),
    Metric(
        "clients/late",
        "Clients that are late",
        "Selected clients whose update arrives after the deadline, or after enough other updates.",
        panel="clients of a round",
    ),
    Metric(
        "clients/quarantined",
        "Clients left out",
        "Clients of the round that raised an error, or whose update was not finite or too large.",
        panel="clients of a round",
    ),
    Metric("clients/top1/*", "training accuracy", percent=True, panel="training accuracy of clients"),
    Metric("clients/loss/*", "training loss", panel="training loss of clients"),
    Metric("clients/update_norm/*", "update norm", panel="size of clients' updates"),
    Metric("clients/removed/*", "removed", panel="removed from clients' updates"),
    *_on_held_out("held_out", "Held-out", "The global model on the examples that clients hold out"),
    *_on_held_out("own", "Own models'", "The participants' own models on the examples that they hold out"),
    Metric("own/top1", "Own models' accuracy: mean by examples", percent=True, panel="own models' accuracy"),
    Metric(
        "own/top3", "Own models' top-3 accuracy: mean by examples", percent=True, panel="own models' top-3 accuracy"
    ),
    Metric("own/loss", "Own models' loss: mean by examples", panel="own models' loss"),
    Metric("cohort/share/*", "share of a class", percent=True, panel="classes in the cohort"),
    Metric(
        "hessian/eigenvalue_1",
        "Largest eigenvalue",
        "Curvature of the loss in its sharpest direction: small at a flat minimum.",
    ),
    Metric("hessian/eigenvalue_*", "eigenvalue", panel="largest eigenvalues of the Hessian"),
    Metric(
        "hessian/ratio_1_5",
        "Ratio of the eigenvalues 1 and 5",
        "Near 1 if the five sharpest directions have about the same curvature.",
        panel="largest over fifth",
    ),
    Metric(
        "parameters/norm",
        "Norm of the parameters",
        "Euclidean norm of the global model's trainable parameters.",
        panel="norm of the parameters",
    ),
    Metric(
        "bytes/down",
        "Bytes to the clients",
        "Bytes that the server would send in a round: the model, and the tensors that rules broadcast.",
        panel="bytes of a round",
        axis="bytes",
    ),
    Metric(
        "bytes/up",
        "Bytes from the clients",
        "Bytes that the clients of a round would send: updates, buffers, and the tensors that rules send.",
        panel="bytes of a round",
        axis="bytes",
    ),
    Metric(
        "bytes/total",
        "Bytes in total",
        "Bytes sent in both directions since round 1.",
        panel="bytes since round 1",
        axis="bytes",
    ),
    Metric("time/seconds", "Seconds of a round", panel="seconds of a round", axis="seconds"),
    *(
        Metric(f"time/{part}", f"Seconds of a round: {part}", panel="seconds of a round by part", axis="seconds")
        for part in ("local", "server", "monitors", "rest")
    ),
)
KNOWN: Final = {metric.name: metric for metric in CATALOGUE}
PAPER_NAMES: Final = {metric.paper: metric for metric in CATALOGUE if metric.paper}

FIRST_COLUMNS = ("val/top1", "val/top3", "val/loss", "train/loss")  # of metrics.csv; the others follow by name
PROGRESS = ("val/top1", "conflict/ratio", "train/loss")  # shown first in the progress display, the most important first
# Short names of losses and errors, of which less is better.
ERRORS: Final = frozenset({"mae", "mse", "rmse", "mape", "nll", "perplexity", "ppl", "bpc", "wer", "cer", "ece"})


def about(name: str) -> Metric:
    """Look up a metric in the catalogue; the title of an unknown metric is its name.

    Args:
        name: a metric's name, or ``prefix/*`` for a metric that is logged for each client.
    """
    return KNOWN.get(name, Metric(name, name))


def measured(name: str) -> tuple[str, float]:
    """Return the metric that a table's column shows, and the factor between them: papers print shares in per cent.

    Args:
        name: name of the metric in the papers' tables, or the metric's own name.

    >>> measured("top1")
    ('val/top1', 100.0)
    >>> measured("val/top1")
    ('val/top1', 1.0)
    """
    if name not in PAPER_NAMES:
        return name, 1.0
    metric = PAPER_NAMES[name]
    return metric.name, 100.0 if metric.percent else 1.0


def axis_title(name: str) -> str:
    """Return the title of a metric's axis in a figure, given a name as in :func:`measured`."""
    metric, factor = measured(name)
    title = about(metric).axis
    return f"{title} (%)" if title and factor != 1 else title or name


def lower_is_better(name: str) -> bool:
    """Tell whether lower values of a metric are better, judged by its name: a loss, an error, or a short name of one.

    >>> lower_is_better("val/huber_loss"), lower_is_better("held_out/mae_worst"), lower_is_better("val/maestro")
    (True, True, False)
    """
    name = name.lower()
    return "loss" in name or "error" in name or not ERRORS.isdisjoint(re.findall("[a-z]+", name))


def is_quality(name: str) -> bool:
    """Whether more or less of a metric is better: loss and accuracy are qualities, a conflict ratio or γ is not.

    >>> is_quality("val/top1"), is_quality("held_out/loss_mean"), is_quality("conflict/ratio")
    (True, True, False)
    """
    return name.partition("/")[0] in ("val", "test", "train", "global_train", "held_out", "own")


def is_item(name: str, prefix: str = ".*") -> bool:
    """Tell whether a metric is ``prefix/<n>``, the value of one client or class among many.

    Args:
        name: the metric's name.
        prefix: regular expression for the part before the number.

    >>> is_item("clients/top1/3"), is_item("clients/top1/3", "fedlaw/weight"), is_item("val/top1")
    (True, False, False)
    """
    return re.fullmatch(rf"(?:{prefix})/\d+", name) is not None
