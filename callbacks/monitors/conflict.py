"""ConflictMonitor: how much the clients' updates disagree."""

from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor, nn
from typing_extensions import override

from fl_lightning import (
    Cohort,
    ConfigurationError,
    Monitor,
    Server,
    angle,
    conflict_ratio,
    cosines,
    is_due,
    log_figure,
    pairs,
    save_arrays,
    share_removed,
)
from fl_lightning.engine.callback import rules_of
from fl_lightning.runs.pictures import draw_cosines


def layers(module: nn.Module) -> Iterator[tuple[str, int]]:
    """The layers of a module in the order of its parameters, with the number of those of each that are trainable.

    A layer's name is that of the submodule which holds the parameters; one that the module itself holds is its own.
    """
    trained = [(name, p.numel()) for name, p in module.named_parameters() if p.requires_grad]
    for layer, parameters in groupby(trained, lambda named: named[0].rpartition(".")[0] or named[0]):
        yield layer, sum(size for _, size in parameters)


def measures(cohort: Cohort, corrected: Tensor) -> dict[str, float]:
    """The conflict in a cohort of at least two clients, see :class:`ConflictMonitor`.

    Args:
        cohort: as the rules left it.
        corrected: (K, K) inner products of its corrected updates.
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


def layer_ratios(cohort: Cohort, module: nn.Module) -> dict[str, float]:
    """The conflict ratio of each layer's part of the updates as they came, by the layer's name."""
    names, sizes = zip(*layers(module), strict=True)
    parts = torch.split(cohort.deltas, list(sizes), dim=1)
    return {name: conflict_ratio(cohort.replace(deltas=part).gram) for name, part in zip(names, parts, strict=True)}


class ConflictMonitor(Monitor):
    """Logs the conflict between the round's updates, under any rule and without changing it.

    - ``conflict/ratio``: share of the pairs with a negative inner product; ``conflict/min_cosine`` and
      ``conflict/mean_cosine`` are over all pairs. The same with ``_after`` at the end are of the corrected updates.
    - ``conflict/weighted_ratio``: the ratio where the pair i, j counts λ_i λ_j, with the cohort's final weights λ: the
      share of conflict in what is summed up. 0 where one client has all the weight.
    - ``conflict/removed``: mean over the clients of ‖Δ_k - Δ'_k‖ / ‖Δ_k‖, with the corrected updates Δ': how much of
      the updates the rules changed. Clients that did not move do not count.
    - ``conflict/angle``: degrees between Σ λ_k Δ'_k and FedAvg's Σ n_k Δ_k, how far the rules turn the step; without
      shrinking factors and what server optimizers make of it. Not logged if a sum is zero, nor where a rule replaces
      the sum (median, …).
    - ``conflict/layer/<name>``: the ratio of a layer's part of the updates as they came, with ``layers``.

    A cohort of one client logs nothing.

    Args:
        every: so many rounds, and after the last that ``trainer.max_epochs`` allows, the cosines of all pairs go to
            ``arrays/cosines_<round>.npz`` in the run folder: ``clients`` (K,), and (K, K) ``before`` and ``after``, of
            the updates as they came and as corrected; the former as a picture, ``conflict/cosines``, to loggers that
            take pictures. 0 for never.
        layers: also log the ratio by layer. It costs a second Gram matrix, and a number for each layer.

    Raises:
        ConfigurationError: ``every`` is negative.
    """

    def __init__(self, every: int = 0, layers: bool = False) -> None:
        if not every >= 0:  # also refuses nan
            raise ConfigurationError(f"ConflictMonitor: every must be a number of rounds, 0 for never, got {every}")
        self.every, self.layers = every, layers

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if len(cohort.clients) == 1:
            return
        corrected = cohort.corrected_gram
        found = measures(cohort, corrected)
        if any(rule.reduce for rule in rules_of(orchestrator.trainer)):
            found.pop("angle", None)  # of a sum that the server never took
        if self.layers:
            ratios = layer_ratios(cohort, orchestrator.client)
            found |= {f"layer/{name}": ratio for name, ratio in ratios.items()}
        for name, value in found.items():
            orchestrator.log_round(f"conflict/{name}", value, prog_bar=name == "ratio")
        if is_due(orchestrator, self.every):
            self._save(orchestrator, cohort, corrected)

    def _save(self, orchestrator: Server, cohort: Cohort, corrected: Tensor) -> None:
        before, after = cosines(cohort.gram).numpy(), cosines(corrected).numpy()
        save_arrays(orchestrator, f"cosines_{cohort.round}", clients=cohort.clients, before=before, after=after)
        log_figure(orchestrator, "conflict/cosines", lambda: draw_cosines(before, cohort.clients), cohort.round)
