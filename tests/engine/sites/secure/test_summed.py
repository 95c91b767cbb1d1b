"""Sites that hide their answers: the run is that of ``fit`` but for rounding; without one of a set there is no sum."""

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lib import tiny_images
from lib.at_sites import remote, sites
from lib.command import rows
from lib.identities import Authority
from lib.sockets import SocketConnection
from lib.toy import trainer
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from fl_lightning import (
    Buffers,
    ClientFailure,
    Cohort,
    ConfigurationError,
    FederatedCallback,
    FederatedOrchestrator,
    LocalRun,
    Server,
)
from fl_lightning.callbacks import (
    ClientDP,
    Ditto,
    FedACG,
    FedAvg,
    FedAvgM,
    FedBN,
    FedBuff,
    FedGAM,
    FedNova,
    FedProto,
    FedProx,
    GradientHarmonization,
    NormClipping,
    PersonalEvaluation,
)
from fl_lightning.datamodules import Tensors
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.round import Outgoing, Round
from fl_lightning.engine.sites.events import Answered, Heard, Message
from fl_lightning.engine.sites.facts import kind_of
from fl_lightning.engine.sites.messages import Incoming, pack_outgoing, pack_tensors, unpack_incoming
from fl_lightning.engine.sites.secure.masks import SiteMasks
from fl_lightning.engine.sites.secure.summed import SummedElsewhere
from fl_lightning.engine.sites.sites import Sites

NAMES = ("anna", "berlin", "cork", "dora")
ROUNDS = 4
IDENTITIES = Authority().identities(NAMES)
Chain = Callable[[], Sequence[Callback]]


def veil(name: str) -> SiteMasks:
    return SiteMasks(name, NAMES, IDENTITIES[name])


def fitted(
    chain: Chain,
    *more: Callback,
    clients: int,
    sites: Sites | None = None,
    place: Callable[[Tensors], FederatedData] = lambda data: data,
    folder: Path | None = None,
    module: Callable[[], LightningModule] = tiny_images.client,
    **settings: Any,
) -> dict[str, Tensor]:
    """Train some rounds; all tensors at the end."""
    orchestrator = FederatedOrchestrator(module(), **settings)
    orchestrator.sites = sites
    logger = CSVLogger(folder, name="", version="") if folder else False
    run = trainer(*chain(), *more, rounds=ROUNDS, logger=logger)
    placed = place(tiny_images.data(num_clients=clients))
    run.fit(orchestrator, datamodule=placed if sites is None else remote(placed, sites))
    return {name: value.clone() for name, value in orchestrator.client.state_dict().items()}


CHAINS: dict[str, Chain] = {
    "FedAvg": list,
    "uniform": lambda: [FedAvg("uniform")],
    "FedProx and server momentum": lambda: [FedProx(0.1), FedAvgM(0.5)],
    "FedACG": lambda: [FedACG()],
    "FedGAM": lambda: [FedGAM()],
    "FedBN": lambda: [FedBN()],
    "Ditto": lambda: [Ditto(0.1)],
}


@pytest.mark.parametrize("clients", [3, 4])
@pytest.mark.parametrize("name", CHAINS)
def test_the_same_as_here_but_for_rounding(name: str, clients: int, tmp_path: Path) -> None:
    """Parameters, BatchNorm's means, variances and counts, and all metrics, after four rounds."""
    chain = CHAINS[name]
    here = fitted(chain, clients=clients, folder=tmp_path / "here")
    settings: dict[str, Any] = {"names": NAMES[:clients], "veil": veil}
    with sites(partial(fitted, chain, clients=clients), clients, tmp_path, **settings) as apart:
        there = fitted(chain, clients=clients, folder=tmp_path / "there", sites=apart)
    for tensor, value in here.items():
        torch.testing.assert_close(there[tensor], value, rtol=2e-6, atol=1e-6)
    logged = [rows(tmp_path / place / "metrics.csv") for place in ("here", "there")]
    assert len(logged[0]) >= ROUNDS
    for one, other in zip(*logged, strict=True):
        for row in (one, other):
            row.pop("clients/state_bytes", None)  # of what a site keeps, the server has a number
        assert other == pytest.approx(one, rel=1e-5, abs=1e-6, nan_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny_images.CALLBACKS)
def test_every_callback_does_as_here_or_is_refused(name: str, tmp_path: Path) -> None:
    if name == "ServerFT":
        pytest.skip("its Adam moves the bias before BatchNorm, whose gradient is 0, by the sign of what is rounded")

    def chain() -> list[Callback]:
        return [tiny_images.CALLBACKS[name]()]

    with sites(partial(fitted, chain, clients=3), 3, tmp_path, names=NAMES[:3], veil=veil) as apart:
        try:
            there = fitted(chain, clients=3, sites=apart)
        except ConfigurationError as error:
            assert f": leave {type(chain()[0]).__name__} out" in str(error)  # noqa: PT017  # not every callback is refused
            return
    for tensor, value in fitted(chain, clients=3).items():
        torch.testing.assert_close(there[tensor], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("callback", "reason"),
    [
        (GradientHarmonization, "reads single updates"),
        (FedNova, "reads the steps of each client"),
        (lambda: NormClipping(1.0), "reads the norms of single updates"),
        (lambda: ClientDP(noise_multiplier=1.0), "reads the norms of single updates"),
        (FedProto, "takes the prototypes of each client"),
        (FedBuff, "starts each client from another model"),
        (PersonalEvaluation, "compares the metrics of single clients"),
    ],
)
def test_what_reads_single_updates_is_refused_by_name(
    callback: Callable[[], FederatedCallback], reason: str, tmp_path: Path
) -> None:
    name = type(callback()).__name__
    refusal = pytest.raises(ConfigurationError, match=rf"^{name} {reason}, but secure aggr.*: leave {name} o")
    with sites(partial(fitted, list, clients=3), 3, tmp_path, names=NAMES[:3], veil=veil) as apart, refusal:
        fitted(lambda: [callback()], clients=3, sites=apart)


class Halved(FederatedCallback):
    """Streams, but does not say what it reads."""

    streams = True

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.scaled(torch.full((len(cohort.clients),), 0.5, dtype=torch.float64))


class ToldHalved(Halved):
    """Says so."""

    reads = frozenset()
    streams = True

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return super().aggregate(orchestrator, cohort)


class ByNorm(ToldHalved):
    """Says what is not true: its weights are those of single norms."""

    reads = frozenset()
    streams = True

    def stream_weights(self, orchestrator: Server, cohort: Cohort, weights: Tensor) -> Tensor:
        return weights / cohort.norms


class Apart(FederatedCallback):
    """Starts each client from another model, and does not say so."""

    starts_at_server = True

    def start(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return params + client, buffers


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        (Halved, r"^Halved may read values of each client in aggregate \(set reads in its class"),
        (ToldHalved, None),
        (Apart, "a rule starts clients 0 and 1 from different models, but secure aggregation needs one start for all"),
        (ByNorm, "a callback reads single updates, but updates are summed as they arrive"),
    ],
)
def test_a_rule_of_ones_own_says_what_it_reads(
    kind: type[FederatedCallback], refused: str | None, tmp_path: Path
) -> None:
    def chain() -> list[Callback]:
        return [kind()]

    with sites(partial(fitted, list, clients=3), 3, tmp_path, names=NAMES[:3], veil=veil) as apart:
        if refused is None:
            fitted(chain, clients=3, sites=apart)
            return
        with pytest.raises(ConfigurationError, match=refused):
            fitted(chain, clients=3, sites=apart)


@pytest.mark.parametrize(
    ("settings", "names", "clients", "refused"),
    [
        ({"max_update_norm": 3.0}, NAMES[:3], 3, r"^model\.max_update_norm 3\.0 compares the norms of single updates"),
        ({}, NAMES[:2], 2, "secure aggregation sums over at least 3 sites, got 2"),
        ({}, NAMES[:3], 6, "secure aggregation expects one client at each site, got others at anna"),
    ],
)
def test_settings_are_refused(
    settings: dict[str, Any], names: Sequence[str], clients: int, refused: str, tmp_path: Path
) -> None:
    with (
        sites(partial(fitted, list, clients=clients), clients, tmp_path, names=names, veil=veil) as apart,
        pytest.raises(ConfigurationError, match=refused),
    ):
        fitted(list, clients=clients, sites=apart, **settings)


class Looking(SocketConnection):
    """Does something else with dora's answer of round 2, as ``way`` says; client 3 is dora's."""

    way = ""

    def send(self, message: Message) -> None:
        answers = kind_of(message) is None
        if answers and self._of_dora(unpack_incoming(message)):
            if self.way == "gone":
                os._exit(1)
            if self.way == "silent":
                return
            if self.way == "other words":
                incoming = unpack_incoming(message)
                assert incoming.model is not None
                message = [message[0], pack_tensors({"model": incoming.model + 1})]
            if self.way == "fewer words":
                incoming = unpack_incoming(message)
                assert incoming.model is not None
                message = [message[0], pack_tensors({"model": incoming.model[1:]})]
        super().send(message)

    def _of_dora(self, incoming: Incoming) -> bool:
        return (incoming.client, incoming.number) == (3, 2)


class AsIf(FederatedCallback):
    """A run here in which round 2 changes nothing, and client 3 is not in the rounds named."""

    def __init__(self, without: Sequence[int]) -> None:
        self.without = without

    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        if run.client == 3 and run.round in self.without:
            raise ClientFailure

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        if cohort.round != 2:
            return cohort
        return cohort.replace(weights=torch.zeros_like(cohort.weights), buffers=orchestrator.read_buffers())


@pytest.mark.parametrize(
    ("way", "without", "told"),
    [
        (
            "gone",
            (3, 4),
            "round 2 is skipped: client 3: its site is gone; the next round goes without, and nobody is ask",
        ),
        (
            "silent",
            (3,),
            "round 2 is skipped: client 3: its site has not answered within 5 s; the next round goes with",
        ),
        ("fewer words", (3,), r"round 2 is skipped: client 3: expected \d+ words, got torch.int64 \(\d+,\); the next"),
        ("other words", (), "round 2 is skipped: the masks of the sites do not add up to zero"),
    ],
)
def test_a_round_without_one_of_its_set_is_skipped(
    way: str, without: Sequence[int], told: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """The run is that in which round 2 changes nothing, and the next one goes without dora; nobody answers twice."""
    connection = type("Way", (Looking,), {"way": way})
    settings: dict[str, Any] = {"names": NAMES, "veil": veil, "connection": connection, "deadline": 5.0}
    with sites(partial(fitted, list, clients=4), 4, tmp_path, **settings) as apart:
        there = fitted(list, clients=4, sites=apart)
    lines = [str(warning.message) for warning in recwarn]
    assert any(re.match(told, line) for line in lines), lines
    here = fitted(lambda: [AsIf(without)], clients=4, on_hidden_state="off")
    for tensor, value in here.items():
        torch.testing.assert_close(there[tensor], value, rtol=2e-6, atol=1e-6)


CERTAIN = 400.0  # chi-square of 255 degrees of freedom, which noise exceeds once in 10 million times


def test_what_the_server_gets_is_uniform(tmp_path: Path) -> None:
    """A run in which no parameter moves (a rate of 0): all that the server gets of it, byte by byte of a word."""

    def still() -> LightningModule:
        module: Any = tiny_images.client()
        module.optimizer = lambda params: torch.optim.SGD(params, lr=0.0)
        return module

    got: list[Tensor] = []
    with sites(partial(fitted, list, clients=3, module=still), 3, tmp_path, names=NAMES[:3], veil=veil) as apart:
        receive = apart.carrier.receive

        def listen(timeout: float) -> Any:
            heard = receive(timeout)
            if isinstance(heard, Heard) and kind_of(heard.message) is None:
                words = unpack_incoming(heard.message).model
                assert words is not None
                got.append(words)
            return heard

        apart.carrier.receive = listen  # type: ignore[method-assign]  # as a curious server does
        fitted(list, clients=3, sites=apart, module=still)
    assert len(got) == 3 * ROUNDS
    together = torch.stack(got)
    for words in (together, together[3:] - together[:-3], together[1:] - together[:-1]):
        for place in words.contiguous().view(torch.uint8).view(-1, 8).T:
            counts = torch.bincount(place.int(), minlength=256).double()
            assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < CERTAIN


class Hostile(SummedElsewhere):
    """Takes the sum of round 2, says that dora has dropped out, and asks the others for a second answer."""

    answers: list[Incoming] = []  # noqa: RUF012  # looked at by the test

    def train(self, round: Round, clients: Sequence[int]) -> None:
        super().train(round, clients)
        if round.number == 2:
            self.ask_again(round, round.number, clients[:3])  # the same round without dora
            self.ask_again(round, 1, clients)  # an earlier one
            self.ask_again(round, 5, clients[:2])  # two sites

    def ask_again(self, round: Round, number: int, clients: Sequence[int]) -> None:
        for client in clients[:3]:
            outgoing: Any = round.outgoing(client)
            shown = self._sites.shown_by(clients)
            asked = Outgoing(**{**vars(outgoing), "number": number, "together": shown})
            self._sites.send(client, pack_outgoing(asked, pack_tensors({"params": asked.params})))
        for _ in clients[:3]:
            event = self._sites.receive(None)
            assert isinstance(event, Answered)
            self.answers.append(unpack_incoming(event.message))


def test_a_server_that_claims_a_drop_out_learns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_lightning.engine.orchestrator.SummedElsewhere", Hostile)
    Hostile.answers.clear()
    with sites(partial(fitted, list, clients=4), 4, tmp_path, names=NAMES, veil=veil) as apart:
        fitted(list, clients=4, sites=apart)
    assert len(Hostile.answers) == 3 + 3 + 2
    for answer in Hostile.answers:
        assert answer.model is None
        assert answer.told is None
        assert answer.result is None
    reasons = [answer.reason for answer in Hostile.answers]
    assert all("has answered for round 2, and answers for a round once" in reason for reason in reasons[:6])
    assert all("expected a set of at least 3 sites" in reason for reason in reasons[6:])
