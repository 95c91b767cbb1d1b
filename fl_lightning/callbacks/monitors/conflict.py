"""ConflictMonitor: how much the clients' updates disagree."""

import torch
from torch import Tensor, nn
from typing_extensions import override

from fl_lightning import (
    Cohort,
    ConfigurationError,
    Metric,
    Monitor,
    Server,
    angle,
    conflict_ratio,
    cosines,
    gram_of_mixed,
    is_due,
    log_figure,
    pairs,
    rules_of,
    save_arrays,
    share_removed,
)
from fl_lightning.engine.module.params import layers
from fl_lightning.later import later
from fl_lightning.runs.pictures import draw_cosines


def measures(cohort: Cohort, corrected: Tensor) -> dict[str, float]:
    """Compute the metrics of :class:`ConflictMonitor`, those of layers excepted, for a cohort of at least two clients.

    Args:
        cohort: the cohort as the rules left it.
        corrected: (K, K) inner products of the cohort's corrected updates.

    Returns:
        The metrics by name, without "conflict/".
    """
    gram, found = cohort.gram, {"weighted_ratio": conflict_ratio(cohort.gram, cohort.weights)}
    for suffix, products in ("", gram), ("_after", corrected):
        similarity = pairs(cosines(products))
        found[f"ratio{suffix}"] = conflict_ratio(products)
        found[f"min_cosine{suffix}"] = float(similarity.min())
        found[f"mean_cosine{suffix}"] = float(similarity.mean())
    mean = cohort.num_samples.double() / cohort.num_samples.sum()
    if not (removed := share_removed(gram, cohort.mixing).nanmean()).isnan():
        found["removed"] = float(removed)
    if (turn := angle(gram, cohort.weights @ cohort.mixing, mean)) is not None:
        found["angle"] = turn
    return found


def layer_ratios(cohort: Cohort, module: nn.Module) -> dict[str, tuple[float, float]]:
    """Compute the conflict ratio of each layer's part of the updates, before and after correction, by layer's name."""
    ratios: dict[str, tuple[float, float]] = {}
    end = 0
    for name, size in layers(module):
        begin = end
        end += size
        gram = cohort.updates.gram(begin, end)
        ratios[name] = conflict_ratio(gram), conflict_ratio(gram_of_mixed(gram, cohort.mixing))
    return ratios


def opposed_pairs(values: Tensor) -> Tensor:
    """Compute for each column the share of the pairs of values of which one is above zero and the other below.

    >>> import torch
    >>> from fl_lightning.callbacks.monitors.conflict import opposed_pairs
    >>> opposed_pairs(torch.tensor([[2.0, -1.0, 0.0], [1.0, 3.0, -1.0], [4.0, 5.0, 2.0]])).mul(3).round().tolist()
    [0.0, 2.0, 1.0]

    Args:
        values: (K, B) the values of at least two clients in B coordinates.

    Returns:
        (B,) shares of the K(K-1)/2 pairs.
    """
    size = len(values)
    signs = values.sign()
    moved = signs.abs().sum(0)  # up + down
    net = signs.sum(0)  # up - down
    return (moved**2 - net**2) / 4 / (size * (size - 1) / 2)


class ConflictMonitor(Monitor):
    """Logs how much the updates of a round conflict, before and after the rules have corrected them.

    - ``conflict/ratio``: share of the pairs of updates with a negative inner product. ``conflict/min_cosine`` and
      ``conflict/mean_cosine`` are the smallest and the mean cosine of all pairs. Names that end in ``_after`` are the
      same measures of the corrected updates.
    - ``conflict/weighted_ratio``: the same ratio, but the pair i, j counts λ_i λ_j times, with the cohort's final
      weights λ. 0 if one client has all the weight.
    - ``conflict/removed``: mean over the clients of ‖Δ_k - Δ'_k‖ / ‖Δ_k‖, the share of the updates Δ that the rules
      changed; Δ' are the corrected updates. Clients that did not move do not count.
    - ``conflict/angle``: degrees between Σ λ_k Δ'_k and FedAvg's Σ n_k Δ_k: how far the rules turn the step. Shrinking
      factors and server optimizers are not included. Not logged if a sum is zero or a rule replaces the sum (median,
      …).
    - ``conflict/sign``: share of the weights that some clients move up and others down. ``conflict/sign_pairs``: mean
      over the weights of the share of the pairs of clients that move the weight in opposite directions. Both before
      correction, and only with ``signs``.
    - ``conflict/layer/<name>``: the ratio of a layer's part of the updates before correction; only with ``layers``.
      ``conflict/layer_after/<name>`` is that of the corrected updates, of the rounds in which a rule corrected any.

    A cohort of one client logs nothing. The monitor changes nothing.

    Args:
        every: number of rounds from one saving of the cosines of all pairs to the next; the last round that
            ``trainer.max_epochs`` allows is saved, too. 0 for never. ``arrays/cosines_<round>.npz`` in the run folder
            holds ``clients`` (K,), and ``before`` and ``after`` (K, K), the cosines of the updates before and after
            correction. Loggers that take pictures get ``before`` as the picture ``conflict/cosines``.
        layers: whether to log the ratio by layer, too, which takes as long as a second Gram matrix and logs one number
            for each layer, or two under a rule that corrects updates. ``arrays/layers.npz`` holds the layers' ``names``
            in the module's order.
        signs: whether to compare the signs of the updates, too, which takes another pass over them.

    Raises:
        ConfigurationError: ``every`` is negative.
    """

    metrics = (
        Metric(
            "conflict/ratio",
            "Conflict ratio",
            "Share of the pairs of clients whose updates point against each other (negative cosine).",
            formula="Over the pairs i < j: Δ_i · Δ_j < 0 (FedGH).",
            percent=True,
            panel="conflict ratio",
        ),
        Metric(
            "conflict/ratio_after",
            "Conflict ratio, after correction",
            "Share of the pairs of corrected updates that point against each other (negative cosine).",
            formula="Δ' in place of Δ.",
            percent=True,
            panel="conflict ratio",
        ),
        Metric(
            "conflict/weighted_ratio",
            "Weighted conflict ratio",
            "Conflict ratio in which each pair is weighted by the product of its two aggregation weights.",
            formula="Σ λ_i λ_j over the pairs in conflict / Σ λ_i λ_j over all; 0 if one client has all the weight.",
            percent=True,
            panel="conflict ratio, weighted",
        ),
        Metric(
            "conflict/mean_cosine",
            "Mean cosine",
            "Mean cosine over all pairs of updates: 1 is the same direction, 0 is unrelated.",
            formula="The cosine with a zero update is 0.",
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
            formula="‖Δ_k − Δ'_k‖ / ‖Δ_k‖ over the clients whose update is not zero.",
            panel="removed by the rules",
        ),
        Metric(
            "conflict/angle",
            "Angle to the plain mean",
            "Degrees between the combined update and the mean of the updates weighted by examples.",
            formula="Between ū and FedAvg's Σ n_k Δ_k.",
            panel="turned by the rules, in degrees",
        ),
        Metric(
            "conflict/sign",
            "Weights with signs in conflict",
            "Share of the weights that some clients move up and others down.",
            formula="Δ_i > 0 and Δ_j < 0 for any clients i, j; grows with the cohort. Only with `signs`.",
            percent=True,
            panel="signs in conflict",
        ),
        Metric(
            "conflict/sign_pairs",
            "Pairs with opposite signs",
            "Share of the pairs of clients that move a weight in opposite directions; mean over the weights.",
            formula="A zero is opposite to nothing; signs drawn at random give 50 %. Only with `signs`.",
            percent=True,
            panel="signs in conflict",
        ),
        Metric(
            "conflict/layer/<name>",
            "Conflict ratio by layer",
            formula="`conflict/ratio` of the layer's part of Δ, weights and biases together; only with `layers`.",
            percent=True,
            panel="conflict ratio by layer",
        ),
        Metric(
            "conflict/layer_after/<name>",
            "Conflict ratio by layer, after correction",
            formula="Δ' in place of Δ; only with `layers`, in rounds in which a rule has corrected updates.",
            percent=True,
            panel="conflict ratio by layer, after correction",
        ),
    )

    @later(signs=False)
    def __init__(self, every: int = 0, layers: bool = False, signs: bool = False) -> None:
        if not every >= 0:  # also refuses nan
            raise ConfigurationError(f"ConflictMonitor: every must be a number of rounds, 0 for never, got {every}")
        self.every, self.layers, self.signs = every, layers, signs

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if len(cohort.clients) == 1:
            return
        corrected = cohort.corrected_gram
        found = measures(cohort, corrected)
        if any(rule.reduce for rule in rules_of(orchestrator.trainer)):
            found.pop("angle", None)  # a reducer takes the place of the weighted sum
        if self.signs:
            opposed = cohort.updates.by_coordinate(opposed_pairs, None)
            found["sign"] = int(opposed.count_nonzero()) / len(opposed)
            found["sign_pairs"] = float(opposed.double().mean())
        if self.layers:
            ratios = layer_ratios(cohort, orchestrator.client)
            found |= {f"layer/{name}": before for name, (before, _) in ratios.items()}
            if not torch.equal(cohort.mixing, torch.eye(len(cohort.clients), dtype=cohort.mixing.dtype)):
                found |= {f"layer_after/{name}": after for name, (_, after) in ratios.items()}
            if cohort.round == 1:
                save_arrays(orchestrator, "layers", names=list(ratios))
        for name, value in found.items():
            orchestrator.log_round(f"conflict/{name}", value, prog_bar=name == "ratio")
        if is_due(orchestrator, self.every):
            self._save(orchestrator, cohort, corrected)

    def _save(self, orchestrator: Server, cohort: Cohort, corrected: Tensor) -> None:
        before, after = cosines(cohort.gram).numpy(), cosines(corrected).numpy()
        save_arrays(orchestrator, f"cosines_{cohort.round}", clients=cohort.clients, before=before, after=after)
        names = orchestrator.data.client_names
        shown = cohort.clients if names is None else [str(names[client]) for client in cohort.clients]
        log_figure(orchestrator, "conflict/cosines", lambda: draw_cosines(before, shown), cohort.round)
