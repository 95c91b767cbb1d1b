"""ClientDP: noise and clip by hand, what one client can move, which chains are refused, and all ways to run it."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from lib.hand_made import apply, serve
from lib.rules import CLIENT_RULES, SERVER_RULES, TinyClassifier, TinyData
from lib.toy import GivenData, Head, Linear, close, trainer
from lib.two_devices import on_two_devices
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping

from fl_lightning import (
    Availability,
    ClientSampler,
    Cohort,
    ConfigurationError,
    FederatedCallback,
    FederatedOrchestrator,
    PoissonSampler,
    Server,
    SizeSampler,
    UniformSampler,
)
from fl_lightning.callbacks import (
    ClientDP,
    ConflictMonitor,
    FedACG,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBN,
    FedGAM,
    FedProto,
    FedProx,
    GradientHarmonization,
    LocalPart,
    NormClipping,
    Scaffold,
    TopK,
)
from fl_lightning.callbacks.privacy.accountant import Accountant
from fl_lightning.callbacks.privacy.private_rule import PrivateRule
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

EPSILON, SPENT = Accountant.epsilon, PrivateRule.epsilon
SILENT = 1e-12  # noise multiplier of a test that looks at the rest
UPDATES = [[3.0, 4.0], [0.0, 0.5], [6.0, -8.0], [0.3, 0.0]]
pytestmark = pytest.mark.filterwarnings("ignore:ClientDP. with:UserWarning")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute no ε, except in the tests that look at it."""
    monkeypatch.setattr(Accountant, "epsilon", lambda *_: 1.0)
    monkeypatch.setattr(PrivateRule, "epsilon", lambda *_: 1.0)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute ε."""
    monkeypatch.setattr(Accountant, "epsilon", EPSILON)
    monkeypatch.setattr(PrivateRule, "epsilon", SPENT)


class Probe(FederatedCallback):
    """Sees the update as the rules before it leave it."""

    streams = True
    reads = frozenset()

    def __init__(self) -> None:
        self.updates: list[Any] = []

    def update(self, orchestrator: Server, cohort: Cohort, update: Any) -> Any:
        self.updates.append(update.clone())
        return update


class ProbeAgain(Probe):
    """Sees it later."""


def test_clipped_and_divided_by_the_expected_number() -> None:
    """(3, 4)/5, (0, 0.5), (6, -8)/10 and (0.3, 0) over four, though two of four take part, and whatever n_k is."""
    expected = [(0.6 + 0.6 + 0.3) / 4, (0.8 + 0.5 - 0.8) / 4]
    assert close(apply(UPDATES, ClientDP(1.0, SILENT), samples=[1, 9, 2, 5])[0], expected)
    assert close(apply(UPDATES, ClientDP(1.0, SILENT), cohorts=[[0, 1]])[0], [0.6 / 4, 1.3 / 4])


def test_the_noise() -> None:
    """Standard deviation z S / C = 1.5 · 2 / 4; of 400,000 draws it is known to 0.0008."""
    moved = apply(torch.zeros(4, 400_000), ClientDP(2.0, 1.5))[0]
    assert float(moved.std()) == pytest.approx(0.75, abs=4 * 0.75 / math.sqrt(2 * 400_000))
    assert abs(float(moved.mean())) < 4 * 0.75 / math.sqrt(400_000)
    again, other = (apply(torch.zeros(4, 400_000), ClientDP(2.0, 1.5), seed=seed)[0] for seed in (0, 1))
    assert torch.equal(moved, again)
    assert abs(float(torch.corrcoef(torch.stack([moved, other]))[0, 1])) < 4 / math.sqrt(400_000)
    half = apply(torch.zeros(4, 400_000), ClientDP(2.0, 1.5), cohorts=[[0, 1]])[0]
    assert torch.equal(half, moved), "the number of clients that came makes no difference"
    rounds = apply(torch.zeros(4, 400_000), ClientDP(2.0, 1.5), rounds=2)[0]
    assert float(rounds.std()) == pytest.approx(0.75 * math.sqrt(2), rel=0.01), "the noise of each round is its own"


def moves(*rules: Any, clients: int = 6, seed: int = 0) -> float:
    """How far one client's leaving moves the sum at most, in units of S, in two rounds of updates of norm 100 S."""
    draw = torch.Generator().manual_seed(seed)
    updates = torch.randn(clients, 4, generator=draw, dtype=torch.float64)
    updates *= 100 / updates.norm(dim=1, keepdim=True)
    sums = []
    for cohort in (range(clients), *([k for k in range(clients) if k != out] for out in range(clients))):
        probe = Probe()
        serve(
            updates,
            ClientDP(1.0, SILENT),
            probe,
            *(make() for make in rules),
            client=Head(),
            cohorts=[list(cohort)] * 2,
            losses=[float(k) for k in range(clients)],
        )
        sums.append(torch.stack(probe.updates) * clients)
    return max(float((each - sums[0]).norm(dim=1).max()) for each in sums[1:])


RULES = {**SERVER_RULES, **CLIENT_RULES}
ALLOWED = {
    "FedAvgM",
    "FedAdagrad",
    "FedYogi",
    "FedAdam",
    "ServerFT",
    "FedACG",
    "FedADMM",
    "FedInit",
    "FedSOL",
    "FedSpeed",
    "FedLESAM",
    "FedProx",
    "FocalLoss",
    "FedDecorr",
    "FedSAM",
    "ASAM",
    "FedLC",
    "FedNTD",
    "FedRS",
}


@pytest.mark.parametrize("name", RULES)
def test_beside_every_rule(name: str) -> None:
    """One client moves the sum by S at most, or the chain is refused."""
    if name in ALLOWED:
        assert moves(RULES[name]) <= 1 + 1e-9
    else:
        with pytest.raises(ConfigurationError, match="ClientDP: the guarantee would be false: "):
            moves(RULES[name])


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_is_reached(seed: int) -> None:
    assert moves(seed=seed) == pytest.approx(1.0)


def test_what_is_refused_would_move_it_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check, harmonized updates do; and without the clip, all."""
    monkeypatch.setattr(ClientDP, "_check_chain", lambda *_: None)
    assert max(moves(GradientHarmonization, seed=seed) for seed in range(10)) > 1.5
    monkeypatch.setattr(
        "fl_lightning.callbacks.privacy.client_dp.clipping_factors", lambda norms, _: torch.ones_like(norms)
    )
    assert moves() == pytest.approx(100)


def fit(
    *rules: Any, rounds: int = 3, sampler: Any = None, availability: Any = None, data: Any = None, **settings: Any
) -> Any:
    orchestrator = FederatedOrchestrator(TinyClassifier(), **settings)
    given = data or TinyData(
        batch_size=4, participation=3, sampler=sampler or PoissonSampler(), availability=availability
    )
    trainer(*rules, rounds=rounds).fit(orchestrator, datamodule=given)
    return orchestrator


DP = partial(ClientDP, 0.1, 1.0)
REFUSED: dict[str, tuple[Any, str]] = {
    "GH": (lambda: fit(DP(), GradientHarmonization(), FedBN()), "GradientHarmonization reads single updates"),
    "SCAFFOLD": (lambda: fit(DP(), Scaffold(), FedBN()), "Scaffold reads single updates"),
    "clipping": (lambda: fit(DP(), NormClipping(1.0), FedBN()), "NormClipping settles the updates"),
    "before": (lambda: fit(NormClipping(1.0), DP(), FedBN()), "NormClipping settles the updates"),
    "samples": (lambda: fit(DP(), FedAvg(), FedBN()), "FedAvg changes the weights after the clip"),
    "samples before": (lambda: fit(FedAvg(), DP(), FedBN()), "FedAvg gives clients different weights"),
    "BatchNorm": (
        lambda: fit(DP()),
        "averages net.0.running_mean, net.0.running_var, without noise: set the network With",
    ),
    "sent": (lambda: fit(DP(), FedProto(), FedBN()), "clients send prototypes"),
    "norms": (lambda: fit(DP(), FedBN(), max_update_norm=3.0), "max_update_norm leaves clients out"),
    "sizes": (lambda: fit(DP(), FedBN(), sampler=SizeSampler()), "SizeSampler draws cohorts with unknown chances"),
    "absence": (lambda: fit(DP(), FedBN(), availability=Availability(0.1)), "availability changes the chance"),
    "rounds": (lambda: fit(ClientDP(target_epsilon=1.0), FedBN(), rounds=-1), r"got trainer.max_epochs -1: set it"),
    "both": (lambda: ClientDP(1.0, 1.0, 8.0), "noise_multiplier or target_epsilon, got both"),
    "neither": (lambda: ClientDP(1.0), "noise_multiplier or target_epsilon, got neither"),
    "clip": (lambda: ClientDP(0.0, 1.0), "clip must be positive and finite, got 0"),
    "delta": (lambda: ClientDP(1.0, 1.0, delta=1.0), r"delta must be in \(0, 1\)"),
    "quantile": (lambda: ClientDP(1.0, 1.0, quantile=0.0), r"quantile must be in \(0, 1\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    run, message = REFUSED[name]
    with pytest.raises(ConfigurationError, match=message):
        run()


@pytest.mark.parametrize("make", [FedAvgM, FedACG, FedAdam])
def test_the_noise_is_there_before_any_rule_acts_on_the_sum(make: Any) -> None:
    """So that the order in the list changes no bit."""
    first, last = fit(make(), DP(), FedBN()), fit(DP(), make(), FedBN())
    assert torch.equal(first.params, last.params)
    assert not torch.equal(first.params, fit(DP(), FedBN()).params)


def test_rules_beside_it() -> None:
    """Equal weights before it, local rules, compressors, parts that stay, and momentum after it; monitors anywhere."""
    rules = [FedGAM(), FedBN(), LocalPart(["net.1.bias"]), FedProx(0.1), TopK(0.5), FedAvgM(), Adds()]
    private, plain = fit(ConflictMonitor(), rules[0], DP(), *rules[1:]), fit(*rules)
    assert private.params.isfinite().all()
    assert float((private.params - plain.params)[8:-3].abs().min()) > 0, "noise is in all that is shared"


class Adds(FederatedCallback):
    """Adds to the sum after the noise, which stays."""

    streams = True
    reads = frozenset()

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.plus(cohort.anchor)


class Sometimes(ClientSampler):
    """Nobody in round 2, all in other rounds."""

    sampling = "poisson"

    def draw(self, sizes: Any, num_clients: int, round: int, generator: Any) -> Any:
        return [] if round == 2 else torch.arange(len(sizes))


def test_a_round_without_clients_moves_the_model_by_noise_and_momentum_by_both() -> None:
    probe, seen = Probe(), ProbeAgain()
    module, data = (
        Linear(2),
        GivenData(torch.tensor(UPDATES, dtype=torch.float64), sampler=Sometimes(), participation=2),
    )
    orchestrator = FederatedOrchestrator(module)
    fitted = trainer(ClientDP(1.0, 0.1), probe, FedAvgM(0.5), seen, rounds=3)
    fitted.fit(orchestrator, datamodule=data)
    first, noise, _ = probe.updates
    assert 0 < float(noise.norm()) < 0.5
    assert close(seen.updates[1], 0.5 * first + noise)
    assert close(orchestrator.params, sum(seen.updates))
    assert fitted.callback_metrics["privacy/epsilon"] == 1.0


def test_other_rules_skip_a_round_without_clients() -> None:
    with pytest.warns(UserWarning, match="round 2 is skipped: no update arrives"):
        fit(sampler=Sometimes())


def test_an_adaptive_clip_follows_the_quantile() -> None:
    """With nobody within S it grows by e^0.1, with all it falls by as much, and with half of them it stays."""
    for clip, grows in ((0.1, 0.1), (20.0, -0.1), (2.0, 0.0)):
        rule = ClientDP(clip, SILENT, quantile=0.5, count_noise=1e-9)
        server, _ = serve(UPDATES, rule, rounds=2)
        assert float(rule.state["clip"]) == pytest.approx(clip * math.exp(2 * grows))
        assert server.logged["privacy/clip"] == pytest.approx(clip * math.exp(grows))


def test_an_adaptive_clip_counts_clients_with_noise() -> None:
    """σ_b = 8 on the sum of ±1/2 over four: log S moves by 0.2 · 8 / 4 · N(0, 1) around its mean, here 0."""
    logs = []
    for seed in range(300):
        rule = ClientDP(2.0, 0.1, quantile=0.5, count_noise=8.0)
        serve(UPDATES, rule, seed=seed)
        logs.append(math.log(float(rule.state["clip"]) / 2))
    assert float(torch.tensor(logs).std()) == pytest.approx(0.4, abs=4 * 0.4 / math.sqrt(600))


@pytest.mark.usefixtures("exact")
def test_epsilon_by_round_and_the_line_before_the_first(caplog: pytest.LogCaptureFixture) -> None:
    """EarlyStopping ends the run before the target; the accountant's own figures are tried in its test."""
    stop = EarlyStopping("privacy/epsilon", mode="max", patience=100, stopping_threshold=1.5)
    orchestrator = FederatedOrchestrator(TinyClassifier())
    run = trainer(ClientDP(0.1, target_epsilon=2.0), FedBN(), stop, rounds=5)
    run.fit(orchestrator, datamodule=TinyData(batch_size=4, participation=3, sampler=PoissonSampler()))
    assert "ClientDP: noise multiplier 1.0" in caplog.text
    assert 1.5 < float(run.callback_metrics["privacy/epsilon"]) < 2.0
    assert run.current_epoch < 5


@pytest.mark.usefixtures("exact")
def test_cohorts_of_a_fixed_size_say_what_poisson_would_save() -> None:
    with pytest.warns(
        UserWarning, match=r"with UniformSampler ε will be 8\.973, with data.sampler: PoissonSampler 1\.409"
    ):
        serve(torch.zeros(100, 2), ClientDP(1.0, 2.0), data=partial(GivenData, participation=10), max_epochs=100)


def whole(folder: Path, *more: Any, resume: Any = None, rounds: int = 4, seed: int = 0, **flags: Any) -> Any:
    """Rounds of a chain with all that ClientDP goes with."""
    disk = {"client_states": flags.pop("client_states", "memory"), "cohort_memory": flags.pop("cohort_memory", None)}
    orchestrator = FederatedOrchestrator(TinyClassifier(), **disk)
    data = TinyData(batch_size=4, participation=2, sampler=PoissonSampler(), seed=5)
    rules = [ClientDP(0.1, 1.0, quantile=0.5), FedBN(), FedProx(0.1), TopK(0.5), FedAvgM(0.5), LastCheckpoint(), *more]
    run = trainer(*rules, rounds=rounds, default_root_dir=folder, enable_checkpointing=True, **flags)
    run.fit(orchestrator, datamodule=data, ckpt_path=resume)
    return orchestrator.params.clone()


def test_resumed_summed_on_disk_and_on_two_devices(tmp_path: Path) -> None:
    """The same bits, in rounds of 1, 4, 1 and 1 of six clients."""
    data = TinyData(participation=2, sampler=PoissonSampler(), seed=5)
    assert {len(data.cohort(round)) for round in range(1, 5)} != {2}
    once = whole(tmp_path / "once")
    whole(tmp_path / "part", rounds=2)
    last = tmp_path / "part" / "checkpoints" / "last.ckpt"
    assert torch.equal(once, whole(tmp_path / "rest", resume=last))
    assert torch.equal(once, whole(tmp_path / "disk", client_states="disk"))
    assert torch.equal(once, whole(tmp_path / "summed", cohort_memory="1KiB"))
    found = on_two_devices(tmp_path, {"dp": partial(whole, tmp_path / "two")})["dp"]
    assert all(torch.equal(once, each) for each in found), found


def goes_on(folder: Path, rounds: int, *rules: Any, sampler: Any = None, drawn: int = 2, resume: bool = True) -> float:
    """The ε after some rounds in all, of a run that goes on from the last."""
    data = TinyData(batch_size=4, participation=drawn, sampler=sampler or PoissonSampler())
    run = trainer(*rules, FedBN(), LastCheckpoint(), rounds=rounds, default_root_dir=folder, enable_checkpointing=True)
    last = folder / "checkpoints" / "last.ckpt"
    run.fit(FederatedOrchestrator(TinyClassifier()), datamodule=data, ckpt_path=last if resume else None)
    return float(run.callback_metrics.get("privacy/epsilon", math.nan))


@pytest.mark.usefixtures("exact")
def test_a_run_that_goes_on_otherwise_adds_up_what_was_released(tmp_path: Path) -> None:
    """Two rounds of two of six by Poisson with z = 1, one with z = 3, and one of three, uniformly, with z = 3.

    The first three by the library's own accountant. The last: all as if every client were in every round, and another
    one could be in its place: Gaussians with z / 2, of which 2 · 2² + 2 · (2/3)² is one with the inverse square root.
    """
    delta = 6**-1.1
    composed = RdpAccountant()
    for noise, times in ((1.0, 2), (3.0, 1)):
        composed.compose(dp_event.PoissonSampledDpEvent(1 / 3, dp_event.GaussianDpEvent(noise)), times)
    goes_on(tmp_path, 2, ClientDP(0.1, 1.0), resume=False)
    assert goes_on(tmp_path, 3, ClientDP(0.2, 3.0)) == pytest.approx(composed.get_epsilon(delta), rel=1e-5)
    fixed = RdpAccountant()
    fixed.compose(dp_event.GaussianDpEvent((2 * 2**2 + 2 * (2 / 3) ** 2) ** -0.5))
    found = goes_on(tmp_path, 4, ClientDP(0.1, 3.0), sampler=UniformSampler(), drawn=3)
    assert composed.get_epsilon(delta) < found <= fixed.get_epsilon(delta) * (1 + 1e-5)


@pytest.mark.usefixtures("exact")
def test_rounds_that_are_not_in_the_record(tmp_path: Path) -> None:
    """Before the rule was in the list, and in an earlier fit: nothing is known of them, so ε is infinite, for ever."""
    goes_on(tmp_path, 1, resume=False)
    with pytest.warns(UserWarning, match="ClientDP: the record of what was released lacks 1 of this model's 1 rounds"):
        assert goes_on(tmp_path, 2, ClientDP(0.1, 1.0)) == math.inf
    assert goes_on(tmp_path, 3, ClientDP(0.1, 1.0)) == math.inf
    with pytest.raises(ConfigurationError, match="have spent ε = inf of the target_epsilon 8"):
        goes_on(tmp_path, 4, ClientDP(0.1, target_epsilon=8.0))

    orchestrator, data = FederatedOrchestrator(TinyClassifier()), TinyData(batch_size=4, participation=2)
    data.sampler, rule = PoissonSampler(), ClientDP(0.1, 1.0)
    for expected in (True, False):
        run = trainer(rule, FedBN(), rounds=1)
        run.fit(orchestrator, datamodule=data)
        assert math.isfinite(float(run.callback_metrics["privacy/epsilon"])) is expected


@pytest.mark.usefixtures("exact")
def test_a_target_for_the_rounds_that_are_left(tmp_path: Path) -> None:
    """A run that only goes on keeps its noise, bit for bit; one that gets more rounds finds another for the rest."""
    once = tmp_path / "once"
    whole_run = goes_on(once, 4, rule := ClientDP(0.1, target_epsilon=4.0), resume=False)
    assert 3.999 < whole_run <= 4.0
    goes_on(tmp_path, 4, StopsAfter(1), ClientDP(0.1, target_epsilon=4.0), resume=False)
    goes_on(tmp_path, 4, StopsAfter(2), again := ClientDP(0.1, target_epsilon=4.0))
    assert again._noise == rule._noise
    goes_on(tmp_path, 6, StopsAfter(3), more := ClientDP(0.1, target_epsilon=4.0))
    assert more._noise > rule._noise
    assert 3.999 < goes_on(tmp_path, 6, last := ClientDP(0.1, target_epsilon=4.0)) <= 4.0
    assert last._noise == more._noise
    with pytest.raises(ConfigurationError, match=r"have spent ε = 4\.000 of the target_epsilon 4: raise it"):
        goes_on(tmp_path, 7, ClientDP(0.1, target_epsilon=4.0))


class StopsAfter(Callback):
    """Ends a fit after some rounds in all."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = pl_module.rounds_done >= self.rounds
