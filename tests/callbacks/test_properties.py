"""The table of properties in docs/reference/server-rules.md: the tests try every cell, in both directions.

Run as a script (by ``make lists``), this file measures the properties of all rules and writes the table.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lists
import pytest
import torch
from lib.hand_made import apply
from lib.rules import SERVER_RULES, Make
from lib.toy import Head
from torch import Tensor

from fl_lightning.callbacks import (
    CAGrad,
    CentredClipping,
    FedAvg,
    FedAvgM,
    FedLAW,
    GlobalWeightShrinking,
    Krum,
    NormClipping,
    TrimmedMean,
)

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "server-rules.md"
START = (0.3, -0.2, 0.1, 0.4)
CLIENTS = 5
TOLERANCE = 1e-6  # of the step's size: quadratic programs are solved to about 1e-7


@dataclass(frozen=True)
class Given:
    """Given clients: updates (K, 4), and what else a rule may look at."""

    updates: Tensor
    samples: Sequence[int]
    steps: Sequence[int]
    losses: Sequence[float]

    def replace(self, **changes: Any) -> "Given":
        return Given(**{**self.__dict__, **changes})

    def permuted(self, order: Sequence[int]) -> "Given":
        def pick(values: Any) -> list[Any]:
            return [values[k] for k in order]

        return Given(self.updates[list(order)], pick(self.samples), pick(self.steps), pick(self.losses))


def drawn(seed: int) -> Given:
    """Updates that conflict, unequal sizes, equal steps."""
    updates = torch.randn(CLIENTS, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Given(updates, [1, 4, 2, 5, 3], [2] * CLIENTS, [0.9, 0.3, 0.5, 1.4, 0.7])


def move(cohort: Given, *rules: Any) -> Tensor:
    """(4,) how far two rounds take the global model when the clients send the same updates in both."""
    given = {"samples": cohort.samples, "steps": cohort.steps, "losses": cohort.losses}
    model, _ = apply(cohort.updates, *rules, **given, rounds=2, start=START, client=Head())
    return model - torch.tensor(START, dtype=torch.float64)


def same(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= TOLERANCE * max(1.0, float(other.abs().max())))


def nothing_from_nothing(make: Make, cohort: Given) -> bool:
    return same(move(cohort.replace(updates=torch.zeros(CLIENTS, 4)), make()), torch.zeros(4))


def one_client_is_followed(make: Make, cohort: Given) -> bool:
    alone = cohort.permuted([1])
    return same(move(alone, make()), 2 * alone.updates[0])


def order_does_not_matter(make: Make, cohort: Given) -> bool:
    return same(move(cohort.permuted([3, 0, 4, 2, 1]), make()), move(cohort, make()))


def follows_the_common_scale(make: Make, cohort: Given) -> bool:
    return same(move(cohort.replace(updates=3 * cohort.updates), make()), 3 * move(cohort, make()))


def linear_in_one_clients_scale(make: Make, cohort: Given) -> bool:
    """Its update times 0.1, 1 and 4: the step changes, by 0.9 and 3 times the same."""
    for client in range(CLIENTS):
        factors = torch.ones(3, CLIENTS, 1, dtype=torch.float64)
        factors[:, client, 0] = torch.tensor([0.1, 1.0, 4.0])
        small, as_it_is, large = (move(cohort.replace(updates=f * cohort.updates), make()) for f in factors)
        if not same((large - as_it_is) / 3, (as_it_is - small) / 0.9) or same(large, small):
            return False
    return True


def fedavg(cohort: Given) -> tuple[Tensor, Tensor]:
    return move(cohort, FedAvg()), move(cohort, FedAvg("uniform"))


def is_fedavg(make: Make, cohort: Given) -> bool:
    """By n_k or uniform: which of them is the rule's own affair."""
    result = move(cohort, make())
    return any(same(result, average) for average in fedavg(cohort))


def fedavg_without_conflict(make: Make, cohort: Given) -> bool:
    """Unequal steps, so that this is not for want of them; products of 2 · 0.5² and more, though signs differ."""
    updates = cohort.updates.abs() + 0.5
    updates[:, 3] = torch.tensor([0.5, -0.5, 0.5, -0.5, 0.5])
    return is_fedavg(make, cohort.replace(updates=updates, steps=[1, 2, 3, 1, 2]))


def fedavg_with_equal_steps(make: Make, cohort: Given) -> bool:
    return is_fedavg(make, cohort)


PROPERTIES: dict[str, Callable[[Make, Given], bool]] = {
    "0 → 0": nothing_from_nothing,
    "one client": one_client_is_followed,
    "order": order_does_not_matter,
    "common scale": follows_the_common_scale,
    "own scale": linear_in_one_clients_scale,
    "no conflict": fedavg_without_conflict,
    "equal steps": fedavg_with_equal_steps,
}
NEUTRAL: dict[str, tuple[str, Make]] = {  # the setting in which a rule is FedAvg whatever the updates
    "CAGrad": ("c = 0", lambda: CAGrad(0.0)),
    "CentredClipping": ("τ = ∞", lambda: CentredClipping(1e9)),
    "FedAvgM": ("β = 0", lambda: FedAvgM(0.0)),
    "FedLAW": ("last_round = 0", lambda: FedLAW(last_round=0)),
    "GlobalWeightShrinking": ("γ = 1", lambda: GlobalWeightShrinking(1.0)),
    "Multi-Krum": ("m = K", lambda: Krum(1, num_selected=CLIENTS)),
    "NormClipping, fixed": ("c = ∞", lambda: NormClipping(1e9)),
    "TrimmedMean": ("ratio = 0", lambda: TrimmedMean(0.0)),
}


def holds(name: str, column: str) -> bool:
    """Whether a property holds for two cohorts; one counterexample shows that it does not."""
    return all(PROPERTIES[column](SERVER_RULES[name], drawn(seed)) for seed in range(2))


def row(name: str) -> str:
    marks = ["✓" if holds(name, column) else "✗" for column in PROPERTIES]
    return f"| {name} | {' | '.join(marks)} | {NEUTRAL[name][0] if name in NEUTRAL else ''} |"


def table() -> list[str]:
    head = f"| rule | {' | '.join(PROPERTIES)} | is FedAvg at |"
    return [head, "|---" * (len(PROPERTIES) + 2) + "|", *(row(name) for name in SERVER_RULES)]


@pytest.mark.parametrize("name", SERVER_RULES)
def test_the_documented_properties_hold_and_the_others_do_not(name: str) -> None:
    assert row(name) in DOCS.read_text().splitlines()


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_settings_are_fedavg(name: str) -> None:
    """Random conflicting updates with unequal steps, where the rule's default setting is not FedAvg."""
    for seed in range(3):
        cohort = drawn(seed).replace(steps=[1, 2, 3, 1, 2])
        assert is_fedavg(NEUTRAL[name][1], cohort)
        assert not is_fedavg(SERVER_RULES[name], cohort)


def test_no_rule_is_missing_from_the_docs_table() -> None:
    printed = [line for line in DOCS.read_text().splitlines() if line.startswith("| ") and line.count("|") == 10]
    assert len(printed) == len(SERVER_RULES) + 1


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    DOCS.write_text(lists.with_lists(DOCS.read_text(), {"properties": table()}))
