"""Compare server rules with loops as the papers' pseudo-code writes them, and with reading all updates once.

20 clients, 1.2 million parameters, one thread; repetitions are interleaved.
"""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch
from torch import Tensor

from benchmarks.common import quiet
from benchmarks.rows import Row, duration
from benchmarks.server import RULES, measure
from fl_lightning import Cohort

CLIENTS, PARAMETERS, BYZANTINE = 20, 1_200_000, 4
READ = "one read"
Orders = Callable[[int], list[int]]  # the updates that one update meets, by its index


def any_order(client: int) -> list[int]:
    return [other for other in torch.randperm(CLIENTS).tolist() if other != client]


def weighted_sum(updates: list[Tensor], weights: Tensor) -> Tensor:
    total = torch.zeros_like(updates[0])
    for update, weight in zip(updates, weights.tolist(), strict=True):
        total += weight * update
    return total


def without_conflicts(updates: list[Tensor], weights: Tensor, orders: Orders = any_order) -> Tensor:
    """Project each update on the normal plane of each other update that it conflicts with (Yu et al., Algorithm 1)."""
    projected = []
    for k, update in enumerate(updates):
        kept = update.clone()
        for other in orders(k):
            product = kept @ updates[other]
            if product < 0:
                kept -= product / (updates[other] @ updates[other]) * updates[other]
        projected.append(kept)
    return weighted_sum(projected, weights)


def pcgrad(updates: list[Tensor], weights: Tensor, orders: Orders = any_order) -> Tensor:
    return without_conflicts(updates, torch.full_like(weights, 1 / len(weights)), orders)


def krum(updates: list[Tensor], weights: Tensor) -> Tensor:
    """Return the update with the smallest squared distances to its K - f - 2 nearest (Blanchard et al., Section 4)."""
    scores = []
    for k, update in enumerate(updates):
        squared = sorted(float((update - other).square().sum()) for j, other in enumerate(updates) if j != k)
        scores.append(sum(squared[: len(updates) - BYZANTINE - 2]))
    return updates[scores.index(min(scores))]


def geometric_median(updates: list[Tensor], weights: Tensor) -> Tensor:
    """Repeat Weiszfeld's step until the weights settle to float32's digits (Pillutla et al., Algorithm 2)."""
    pulls, smallest = weights / weights.sum(), 1e-6 * float(torch.stack([u.norm() for u in updates]).median())
    for _ in range(100):
        centre, before = weighted_sum(updates, pulls), pulls
        distances = torch.stack([(update - centre).norm() for update in updates]).to(weights)
        pulls = weights / distances.clamp(min=smallest)
        pulls = pulls / pulls.sum()
        if (pulls - before).abs().max() < 1e-6:
            break
    return weighted_sum(updates, pulls)


NAIVE: dict[str, Callable[[list[Tensor], Tensor], Tensor]] = {
    "FedAvg": weighted_sum,
    "GradientHarmonization": without_conflicts,
    "PCGrad": pcgrad,
    "Krum": krum,
    "GeometricMedian": geometric_median,
}


def of_cohort(naive: Callable[[list[Tensor], Tensor], Tensor], cohort: Cohort) -> Tensor:
    return naive(list(cohort.deltas), cohort.weights)


def rows(quick: bool, install: bool) -> Iterator[Row]:
    quiet()
    for name, naive in NAIVE.items():
        others = {"naive": partial(of_cohort, naive), READ: lambda cohort: cohort.deltas.sum()}
        taken = measure(CLIENTS, PARAMETERS, 3 if quick else 9, {name: RULES[name]()}, others).seconds
        case = f"{name}, K = {CLIENTS}, P = {PARAMETERS:,}"
        for figure, one, other, aim in (
            ("naive ÷ ours", taken["naive"], taken[name], "≥ 1"),
            (f"ours ÷ {READ}", taken[name], taken[READ], None),
        ):
            ratios = [a / b for a, b in zip(one, other, strict=True)]
            note = f"{duration(median(one))} ÷ {duration(median(other))}"
            yield Row.over(ratios, "server", case, figure, aim, note)
