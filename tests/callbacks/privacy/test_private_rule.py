"""ε of random runs, resumed with other settings and with faults, beside an accountant of its own for what was seen.

What was released is seen from outside: the updates that leave a client (LocalDP), the sums of gradients that get noise,
with the examples in them (ExampleDP), and the sums of the server that get noise (ClientDP).

A lower bound of the true ε is that of one worst pair of data: all other vectors are zero, and one is S e₁, 0 or -S e₁.
A sum is then a number whose density is a mixture of two Gaussians, and the losses of privacy of several sums add up:
their distribution is computed on a grid, rounded down. An upper bound is Rényi's, by the formulas for whole orders of
Mironov et al., 2019 ("Rényi Differential Privacy of the Sampled Gaussian Mechanism"), and of Canonne et al., 2020.
"""

import math
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from lib.toy import InTurn, trainer
from lightning.pytorch import LightningModule
from scipy.signal import fftconvolve
from scipy.special import gammaln, logsumexp
from scipy.stats import norm
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fl_lightning import (
    Cohort,
    ConfigurationError,
    FederatedCallback,
    FederatedDataModule,
    FederatedOrchestrator,
    LocalRun,
    PoissonSampler,
    RoundRobinSampler,
    Server,
    UniformSampler,
)
from fl_lightning.callbacks import ClientDP, ExampleDP, FaultInjection, LocalDP
from fl_lightning.callbacks.privacy.noisy_clients import NoisyClients
from fl_lightning.errors import TrainingError
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

DELTA, STEP = 1e-3, 0.005
CLIENTS, EXAMPLES = 5, (2, 3, 4, 6, 7)
ORDERS = range(2, 64)
VOUCHED = ["Model", "Data", "Model.on_train_batch_start", "Model.optimizer_step"]
pytestmark = pytest.mark.filterwarnings("ignore")


class Sum(NamedTuple):
    """A sum that was released: the share of the vectors that were drawn, whether by Poisson, and the noise over S."""

    share: float
    poisson: bool
    noise: float


def losses(share: float, noise: float, replaced: bool) -> tuple[int, np.ndarray[Any, Any]]:
    """The distribution of one sum's loss of privacy, in steps rounded down, from a first step on."""
    x = np.linspace(-12 * noise - 1, 12 * noise + 1, 20001)
    with np.errstate(divide="ignore"):
        stays, moves = np.log1p(-share) if share < 1 else -np.inf, np.log(share)

    def density(at: float) -> Any:
        return np.logaddexp(stays + norm.logpdf(x, 0, noise), moves + norm.logpdf(x, at, noise))

    loss = density(1) - (density(-1) if replaced else norm.logpdf(x, 0, noise))
    below = (1 - share) * norm.cdf(x, 0, noise) + share * norm.cdf(x, 1, noise)
    steps = np.floor(loss[:-1] / STEP).astype(int)
    return int(steps.min()), np.bincount(steps - steps.min(), weights=np.diff(below))


def at_least(sums: Counter[Sum]) -> float:
    """The ε of one pair of neighbouring data, which the true ε is not below."""
    replaced = not all(each.poisson for each in sums)
    first, total = 0, np.ones(1)
    for each, count in sums.items():
        start, one = losses(each.share, each.noise, replaced)
        for _ in range(count):
            first, total = first + start, fftconvolve(total, one).clip(min=0)
    at = STEP * (first + np.arange(len(total)))

    def delta(epsilon: float) -> float:
        over = at > epsilon
        return float((total[over] * -np.expm1(epsilon - at[over])).sum())

    low, high = 0.0, float(at[-1])
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
    return low


def renyi(each: Sum, order: int, replaced: bool) -> float:
    """The divergence of one sum: α / (2 σ²) if all vectors are in it and one is replaced, which moves it by 2 S."""
    if replaced:
        return order / (2 * (each.noise / 2) ** 2)
    k = np.arange(order + 1)
    binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    chance = k * math.log(each.share) + (order - k) * math.log1p(-each.share)
    return float(logsumexp(binomial + chance + k * (k - 1) / (2 * each.noise**2)) / (order - 1))


def at_most(sums: Counter[Sum]) -> float:
    """A bound that the logged ε may not exceed: it has more orders, and a smaller bound for subsets."""
    replaced = not all(each.poisson for each in sums)
    found = []
    for order in ORDERS:
        spent = sum(count * renyi(each, order, replaced) for each, count in sums.items())
        found.append(spent + math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1))
    return max(min(found), 0.0)


def test_the_bounds() -> None:
    """Of one Gaussian with σ / Δ = 2 (Balle & Wang, 2018, Theorem 8), and of McMahan et al.'s 100 of 10⁵ clients."""
    gauss = Counter({Sum(1.0, False, 4.0): 1})
    found = at_least(gauss)
    assert norm.cdf(1 / 4 - 2 * found) - math.exp(found) * norm.cdf(-1 / 4 - 2 * found) == pytest.approx(DELTA, rel=0.1)
    assert found <= at_most(gauss) < 1.3 * found
    sampled = Counter({Sum(0.1, True, 1.0): 3})
    assert 0.5 < at_least(sampled) <= at_most(sampled) < 2 * at_least(sampled)


class Model(LightningModule):
    """A linear classifier whose batches are some clients' examples, named by their first number; it may skip some."""

    seen: Any = None

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.net = nn.Linear(2, 2).double()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
        if not torch._C._functorch.is_functorch_wrapped_tensor(batch[0]):
            Model.seen = batch[0][:, 0].tolist()
            if self.way == "skips" and batch_idx % 2:
                return None
        return nn.functional.cross_entropy(self.net(batch[0][:, 1:]), batch[1])

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if self.way == "leaves" and batch_idx == 1 else None

    def configure_optimizers(self) -> Any:
        if self.way == "LBFGS":
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        if self.way == "twice" and batch_idx == 0:
            optimizer_closure()
        optimizer.step(closure=optimizer_closure)


class Data(FederatedDataModule):
    """The data of some people, who are the clients in an order."""

    num_clients = CLIENTS

    def __init__(self, order: list[int], **settings: Any) -> None:
        super().__init__(**settings)
        self.order = order

    def client_dataset(self, client: int) -> Any:
        person = self.order[client]
        draw = torch.Generator().manual_seed(person)
        names = 100 * person + torch.arange(EXAMPLES[person])
        points = torch.randn(EXAMPLES[person], 2, generator=draw, dtype=torch.float64)
        return TensorDataset(torch.cat([names[:, None].double(), points], dim=1), names % 2)


class Sent(FederatedCallback):
    """Sees what leaves a client."""

    post_processes = True

    def __init__(self, chain: "Chain") -> None:
        self.chain = chain

    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        self.chain.release([self.chain.order[run.client]])
        return update


class Chain:
    """A run in one to three parts, each with other settings, resumed from the last or as a second fit.

    The people may have other numbers in a later part: then an ε above the truth is right, and nobody knows how far.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw, self.folder = random.Random(seed), folder
        self.kind: Any = (LocalDP, ExampleDP, ClientDP)[seed % 3]
        self.order = [*range(CLIENTS)]  # the person that each client is
        self.renumbered = False
        self.sums: dict[Any, Counter[Sum]] = {}  # by person or example
        self.most: dict[Any, Counter[Sum]] = {}  # by person, for a bound above: an example may be in all of its sums
        self.now = Sum(1.0, False, 1.0)
        self.bare = self.lost = False  # whether a round had no noise, or is not in the record
        self.compared: list[tuple[float, float, float]] = []

    def release(self, units: Any) -> None:
        for unit in units:
            self.sums.setdefault(unit, Counter())[self.now] += 1
        for client in {name // 100 if self.kind is ExampleDP else name for name in units}:
            self.most.setdefault(client, Counter())[self.now] += 1

    def logs(self, epsilon: float) -> None:
        """The logged ε, and between which bounds it must be."""
        if self.bare or self.lost:
            self.compared.append((math.inf, epsilon, math.inf))
            return
        least, most = max(map(at_least, self.sums.values())), max(map(at_most, self.most.values()))
        self.compared.append((least, epsilon, math.inf if self.renumbered and math.isfinite(epsilon) else most))

    def run(self) -> None:
        draw, orchestrator, rounds = self.draw, None, 0
        for part in range(draw.randint(1, 3)):
            private, again = draw.random() < 0.85, part > 0 and draw.random() < 0.2
            new, settings = draw.randint(1, 2), {"max_update_norm": draw.choice([None, None, 1.0, 1.5])}
            noise, rules = draw.choice([0.7, 1.0, 2.0, 5.0, 20.0]), list[Any]()
            if self.kind is ClientDP:
                settings["max_update_norm"] = None
            if self.kind is ExampleDP:
                settings |= draw.choice([{}, {"local_epochs": 3}, {"local_steps": 3}, {"local_epochs": 0.5}])
            if self.kind is LocalDP:
                settings["clients_at_once"] = draw.choice([1, 2])
            if private:
                vouched = {"by_example": VOUCHED} if self.kind is ExampleDP else {}
                rules.append(self.kind(draw.choice([0.1, 1.0]), noise, delta=DELTA, **vouched))
            if draw.random() < 0.5:
                faults = draw.sample(range(CLIENTS), 2), draw.choice([None, [rounds + 1]])
                rules.append(FaultInjection(draw.choice(["nan", "huge", "raise"]), *faults))
            if private and self.kind is LocalDP:
                rules.insert(1, Sent(self))
            sampler: Any = draw.choice([UniformSampler, PoissonSampler, RoundRobinSampler])()
            drawn = draw.randint(2, CLIENTS - 1)
            sampled = self.kind is ClientDP and sampler.sampling != "fixed"
            share = drawn / CLIENTS if sampled else 1.0
            self.now = Sum(share, sampled and sampler.sampling == "poisson", noise)
            if orchestrator is None or not again:
                orchestrator = FederatedOrchestrator(
                    Model(draw.choice(["", "skips", "leaves", "LBFGS", "twice"])), on_hidden_state="off", **settings
                )
            elif rounds:
                self.lost = True
            if part and draw.random() < 0.3:
                draw.shuffle(self.order)
                self.renumbered = True
            done = 0 if again else rounds
            data = Data([*self.order], batch_size=2, participation=drawn, sampler=sampler)
            run = trainer(
                *rules, LastCheckpoint(), rounds=done + new, default_root_dir=self.folder, enable_checkpointing=True
            )
            last = self.folder / "checkpoints" / "last.ckpt"
            try:
                run.fit(orchestrator, datamodule=data, ckpt_path=last if part and not again else None)
            except (TrainingError, RuntimeError) as error:
                if "so is every other one" not in str(error):
                    raise
                return
            rounds = orchestrator.rounds_done
            self.bare = self.bare or (not private and new > 0)
            if not private:
                self.lost = True


def compared(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> list[tuple[float, float, float]]:
    """What a random run logs, between its bounds."""
    chain = Chain(seed, folder)
    add, aggregate, log = NoisyClients.add_noise, ClientDP.aggregate, FederatedOrchestrator.log_round

    def adds(rule: Any, *args: Any) -> Tensor:
        if isinstance(rule, ExampleDP):
            chain.release(Model.seen)
        return add(rule, *args)

    def sums(rule: Any, server: Any, cohort: Cohort) -> Cohort:
        chain.release(["a client"])
        noisy = aggregate(rule, server, cohort)
        assert noisy.added is not None
        return noisy

    def logs(server: Any, name: str, value: float, **settings: Any) -> None:
        if name == "privacy/epsilon":
            chain.logs(value)
        log(server, name, value, **settings)

    patch.setattr(NoisyClients, "add_noise", adds)
    patch.setattr(ClientDP, "aggregate", sums)
    patch.setattr(FederatedOrchestrator, "log_round", logs)
    chain.run()
    return chain.compared


def check(seeds: range, folder: Path, patch: pytest.MonkeyPatch) -> None:
    finite = infinite = 0
    for seed in seeds:
        (folder / str(seed)).mkdir()
        with patch.context() as inner:
            for least, logged, most in compared(seed, folder / str(seed), inner):
                assert least <= logged <= most * (1 + 1e-9), f"seed {seed}"
                finite, infinite = finite + math.isfinite(logged), infinite + math.isinf(logged)
    assert finite > len(seeds)
    assert infinite > len(seeds) / 10


PEOPLE = {"anna": 1, "ben": 2, "carl": 3}


class People(FederatedDataModule):
    """Named or numbered clients, each with three points."""

    def __init__(self, people: list[str], is_named: bool, cohorts: InTurn) -> None:
        super().__init__(batch_size=3, participation=1, sampler=cohorts, client_names=people if is_named else None)
        self.people, self.num_clients = people, len(people)

    def client_dataset(self, client: int) -> Any:
        draw = torch.Generator().manual_seed(PEOPLE[self.people[client]])
        return TensorDataset(torch.randn(3, 3, generator=draw, dtype=torch.float64), torch.tensor([0, 1, 1]))


def goes_on(folder: Path, kind: Any, first: list[str], then: list[str], is_named: bool, forgets: bool) -> Any:
    """The rule after three rounds of the first client of ``first``, and three of the second of ``then``."""
    vouched = {"by_example": [*VOUCHED, "People"]} if kind is ExampleDP else {}
    last = folder / "checkpoints" / "last.ckpt"
    for part, people in enumerate([first, then]):
        rule, data = kind(1.0, 4.0, delta=DELTA, **vouched), People(people, is_named, InTurn([part]))
        run = trainer(rule, LastCheckpoint(), rounds=3 * part + 3, default_root_dir=folder, enable_checkpointing=True)
        model = FederatedOrchestrator(Model(""), on_hidden_state="off")
        run.fit(model, datamodule=data, ckpt_path=last if part else None)
        if forgets and not part:
            checkpoint = torch.load(last, weights_only=False)
            for state in checkpoint["callbacks"].values():
                state.pop("units", None)
            torch.save(checkpoint, last)
    return rule


@pytest.mark.parametrize("kind", [LocalDP, ExampleDP])
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize(
    ("first", "then", "made", "forgets"),
    [
        ("anna ben", "anna ben", [3, 3], False),
        ("anna ben", "ben anna", [3, 6], False),
        ("anna ben", "carl ben anna", [3, 6, 3], False),
        ("anna ben carl", "carl anna", [3, 6], False),
        ("anna ben", "anna ben", [3, 6], True),
    ],
)
def test_who_has_another_number(
    tmp_path: Path, kind: Any, is_named: bool, first: str, then: str, made: list[int], forgets: bool
) -> None:
    """Client 0 releases three sums, then client 1: the same person, unless the record knows that nobody has moved.

    As of a record without fingerprints. ε is that of the library for sums with σ / Δ = 2.
    """
    rule = goes_on(tmp_path, kind, first.split(), then.split(), is_named, forgets)
    assert rule.state["made"].tolist() == [made]
    library = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    expected = library.compose(GaussianDpEvent(2.0), max(made)).get_epsilon(DELTA)
    assert rule.epsilon(DELTA) == pytest.approx(expected)


class Measures(Data):
    """Scales the points by what it has measured on all of them."""

    measured = {"the largest point": "give it"}  # noqa: RUF012  # of a class for one test


@pytest.mark.parametrize("kind", [LocalDP, ExampleDP, partial(ClientDP, noise_multiplier=1.0)])
def test_nothing_is_measured_on_all_clients(kind: Any) -> None:
    vouched = {"by_example": [*VOUCHED, "Measures"]} if kind is ExampleDP else {}
    message = "DP: Measures measures the largest point on the examples of all clients, without noise, .*: give it"
    with pytest.raises(ConfigurationError, match=message):
        trainer(kind(**vouched)).fit(FederatedOrchestrator(Model("")), datamodule=Measures([*range(CLIENTS)]))


def test_never_below_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(range(15), tmp_path, monkeypatch)


@pytest.mark.slow
def test_never_below_the_truth_in_many_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(range(15, 200), tmp_path, monkeypatch)
