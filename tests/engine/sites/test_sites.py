"""Clients that train in other processes, which sockets connect: the same bits as here, and what a site does wrong."""

import errno
import os
import pickle
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lib import tiny_images
from lib.at_sites import SITES, remote, sites
from lib.command import rows
from lib.sockets import SocketConnection
from lib.toy import trainer
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from fl_lightning import (
    ArrivalSampler,
    Cohort,
    ConfigurationError,
    FederatedCallback,
    FederatedOrchestrator,
    LocalRun,
    Monitor,
    Server,
    TrainingError,
)
from fl_lightning.callbacks import (
    ALIE,
    IFCA,
    MOON,
    AveragedMoments,
    Ditto,
    ExampleDP,
    FedACG,
    FedBN,
    FedBuff,
    FedDyn,
    FedGAM,
    FedLAW,
    FedProto,
    GradientHarmonization,
    HessianMonitor,
    LocalDP,
    LossSurface,
    PerFedAvg,
    PersonalEvaluation,
    Scaffold,
    SignFlip,
    TopK,
    TrainingEvaluation,
)
from fl_lightning.datamodules import Tensors
from fl_lightning.engine.federation.clients import remedy
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.sites.data import SiteData
from fl_lightning.engine.sites.events import Gone, Heard, Message
from fl_lightning.engine.sites.facts import kind_of
from fl_lightning.engine.sites.messages import pack_incoming, unpack_incoming
from fl_lightning.engine.sites.sites import Sites
from fl_lightning.models import ImageClassifier
from fl_lightning.models.adapters import adapt_network

CLIENTS, ROUNDS = 6, 3
STATE_BYTES = "clients/state_bytes"  # of what a site keeps, the server has a number
Chain = Callable[[], Sequence[Callback]]


class ByHand(ImageClassifier):
    """Steps its optimizer itself."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        outputs = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(outputs["loss"])
        optimizer.step()
        return outputs


def dropping(kind: type[ImageClassifier] = ImageClassifier) -> LightningModule:
    """The tiny classifier with dropout."""
    made: Any = tiny_images.client()
    network = nn.Sequential(*made.network[:6], nn.Dropout(0.5), made.network[6])
    return kind(network, 3, optimizer=lambda params: torch.optim.SGD(params, lr=0.05))


def adapted() -> LightningModule:
    """The tiny classifier with adapters that have dropout, which Adam trains."""
    made: Any = tiny_images.client()
    adapt_network(made.network, "6", adapt="lora", rank=1, dropout=0.5, targets=["4"])
    return ImageClassifier(made.network, 3, optimizer=lambda params: torch.optim.Adam(params, lr=0.01))


def fitted(
    chain: Chain,
    *more: Callback,
    sites: Sites | None = None,
    place: Callable[[Tensors], FederatedData] = lambda data: data,
    folder: Path | None = None,
    module: Callable[[], LightningModule] = tiny_images.client,
    data: dict[str, Any] | None = None,
    precision: Any = "32-true",
    **settings: Any,
) -> dict[str, Tensor]:
    """Train some rounds; all tensors at the end."""
    orchestrator = FederatedOrchestrator(module(), **{"on_bad_update": "raise", **settings})
    orchestrator.sites = sites
    logger = CSVLogger(folder, name="", version="") if folder else False
    run = trainer(*chain(), *more, rounds=ROUNDS, logger=logger, precision=precision)
    placed = place(tiny_images.data(**(data or {})))
    run.fit(orchestrator, datamodule=placed if sites is None else remote(placed, sites))
    return {name: value.clone() for name, value in orchestrator.client.state_dict().items()}


def assert_as_here(folder: Path, chain: Chain, **settings: Any) -> None:
    """Train here and at three sites: all tensors and all logged numbers are the same."""
    here = fitted(chain, folder=folder / "here", **settings)
    with sites(partial(fitted, chain, **settings), CLIENTS, folder) as apart:
        there = fitted(chain, folder=folder / "there", sites=apart, **settings)
    for name, value in here.items():
        assert torch.equal(there[name], value), name
    logged = [rows(folder / place / "metrics.csv") for place in ("here", "there")]
    assert len(logged[0]) >= ROUNDS
    for one, other in zip(*logged, strict=True):
        for row in (one, other):
            row.pop(STATE_BYTES, None)
        assert other == pytest.approx(one, rel=0, abs=0, nan_ok=True)


CHAINS: dict[str, tuple[Chain, dict[str, Any]]] = {
    "GH, BatchNorm and dropout": (lambda: [GradientHarmonization()], {"module": dropping}),
    "Scaffold and GH": (lambda: [Scaffold(), GradientHarmonization()], {}),
    "Ditto": (lambda: [Ditto(0.1)], {}),
    "FedBN": (lambda: [FedBN()], {}),
    "IFCA": (lambda: [IFCA(2)], {}),
    "FedDyn, decay, stragglers": (
        lambda: [FedDyn(0.1)],
        {"local_lr_decay": 0.9, "stragglers": 0.5, "local_epochs": 3},
    ),
    "a schedule of rates": (
        list,
        {"local_lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)},
    ),
    "PerFedAvg": (lambda: [PerFedAvg()], {}),
    "FedProto": (lambda: [FedProto()], {}),
    "TopK": (lambda: [TopK(0.2)], {}),
    "SignFlip": (lambda: [SignFlip(2)], {}),
    "ALIE": (lambda: [ALIE(2)], {}),
    "MOON": (lambda: [MOON()], {}),
    "FedLAW": (lambda: [FedLAW()], {}),
    "FedGAM": (lambda: [FedGAM()], {}),
    "FedACG": (lambda: [FedACG()], {}),
    "FedBuff": (lambda: [FedBuff()], {"data": {"participation": 2, "sampler": ArrivalSampler(busy=4, seed=2)}}),
    "states on disk": (lambda: [Scaffold(), Ditto(0.1)], {"client_states": "disk"}),
    "bf16-mixed": (lambda: [FedDyn(0.1)], {"precision": "bf16-mixed"}),
    "adapters with dropout, moments": (lambda: [AveragedMoments()], {"module": adapted}),
    "manual optimization": (list, {"module": lambda: dropping(ByHand)}),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_same_bits_as_here(name: str, tmp_path: Path) -> None:
    chain, settings = CHAINS[name]
    assert_as_here(tmp_path, chain, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny_images.CALLBACKS)
def test_every_callback_does_as_here(name: str, tmp_path: Path) -> None:
    if name == "PersonalEvaluation" or getattr(tiny_images.CALLBACKS[name](), "needs_one_machine", None):
        pytest.skip("has a test of its own")
    assert_as_here(tmp_path, lambda: [tiny_images.CALLBACKS[name]()])


def test_what_stays_is_at_the_site(tmp_path: Path) -> None:
    """The server has the number of the round in its place, and a site the values of the last two rounds."""
    rule = Ditto(0.1)
    with sites(partial(fitted, lambda: [Ditto(0.1)]), CLIENTS, tmp_path) as apart:
        fitted(lambda: [rule], sites=apart)
    assert {name: value.tolist() for name, value in rule.state.items()} == {f"kept/own/{k}": ROUNDS for k in range(6)}
    for client in range(CLIENTS):
        kept = (tmp_path / SITES[client % 3]).rglob(f"own%2F{client}/*")
        assert {path.stem for path in kept} == {"2", "3"}


class Asking(Monitor):
    """Evaluates a client's own model at the server."""

    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        orchestrator.personal_model(0)  # type: ignore[misc]


def test_what_stays_is_not_asked_for_at_the_server(tmp_path: Path) -> None:
    def chain() -> list[Callback]:
        return [Ditto(0.1), Asking()]

    refusal = pytest.raises(ConfigurationError, match=r"Ditto asks for own/0 at the server, but it stays at its client")
    with sites(partial(fitted, chain), CLIENTS, tmp_path) as apart, refusal:
        fitted(chain, sites=apart)


def test_no_example_is_read_at_the_server(tmp_path: Path) -> None:
    """PerFedAvg makes a client's own model from the client's examples."""

    def chain() -> list[Callback]:
        return [PerFedAvg(), Asking()]

    refusal = pytest.raises(ConfigurationError, match=r"PerFedAvg asks for the training examples of client 0, which li")
    with sites(partial(fitted, chain), CLIENTS, tmp_path) as apart, refusal:
        fitted(chain, sites=apart)


class Curious(FederatedCallback):
    """Reads another client's examples."""

    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        orchestrator.client_loss((run.client + 1) % CLIENTS, run.params)


def test_a_site_has_no_other_clients(tmp_path: Path) -> None:
    fitted(lambda: [Curious()])
    refusal = pytest.raises(TrainingError, match=r"round 1: client . is left out: ConfigurationError in Curious")
    with sites(partial(fitted, lambda: [Curious()]), CLIENTS, tmp_path) as apart, refusal:
        fitted(lambda: [Curious()], sites=apart)


@pytest.mark.parametrize("refused", [TrainingEvaluation, HessianMonitor, LossSurface, LocalDP, ExampleDP])
def test_what_needs_one_machine_is_refused_by_name(refused: type[FederatedCallback], tmp_path: Path) -> None:
    with sites(partial(fitted, list), CLIENTS, tmp_path) as apart:
        name = refused.__name__
        with pytest.raises(ConfigurationError, match=rf"{name} .*, but the clients train at sites.*: leave {name} out"):
            fitted(lambda: [refused()], sites=apart)


def test_clients_at_once_are_refused(tmp_path: Path) -> None:
    refusal = pytest.raises(
        ConfigurationError, match=r"expected model\.clients_at_once to be 1 where clients train at s"
    )
    with sites(partial(fitted, list), CLIENTS, tmp_path) as apart, refusal:
        fitted(list, sites=apart, clients_at_once=3)


def test_own_models_are_evaluated_at_their_sites(tmp_path: Path) -> None:
    """What a server cannot compute without examples is not there; all else has the same bits."""

    def chain() -> list[Callback]:
        return [Ditto(0.1), PersonalEvaluation()]

    fitted(chain, folder=tmp_path / "here")
    with sites(partial(fitted, chain), CLIENTS, tmp_path) as apart:
        fitted(chain, folder=tmp_path / "there", sites=apart)
    here, there = (by_round(tmp_path / place / "metrics.csv") for place in ("here", "there"))
    for one, other in zip(here, there, strict=True):
        elsewhere = {name for name in one if name.startswith(("held_out/", "personal/"))}
        one[STATE_BYTES] = other[STATE_BYTES]
        assert {name for name in other if name.startswith("own/")}
        assert other == {name: value for name, value in one.items() if name not in elsewhere}


def by_round(path: Path) -> list[dict[str, float]]:
    """All that metrics.csv has of each round."""
    values: dict[float, dict[str, float]] = {}
    for row in rows(path):
        values.setdefault(row["round"], {}).update(row)
    return list(values.values())


class Peeking(FederatedCallback):
    """Reads what is not sent."""

    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        self.recall("secret", run.params)

    def update(self, orchestrator: Server, cohort: Any, update: Tensor) -> Tensor:
        self.state["secret"] = update
        return update


def test_a_state_that_is_not_sent_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    fitted(lambda: [Peeking()])
    refusal = pytest.raises(TrainingError, match=r"round 1: client . is left out: ConfigurationError in Peeking")
    with sites(partial(fitted, lambda: [Peeking()]), CLIENTS, tmp_path) as apart, refusal:
        fitted(lambda: [Peeking()], sites=apart)


def test_a_start_at_the_server_comes_before_one_at_the_site(tmp_path: Path) -> None:
    def chain() -> list[Callback]:
        return [FedBN(), IFCA(2), FedBuff()]

    settings: dict[str, Any] = {"data": {"participation": 2, "sampler": ArrivalSampler(busy=4, seed=2)}}
    with (
        sites(partial(fitted, chain, **settings), CLIENTS, tmp_path) as apart,
        pytest.raises(ConfigurationError, match="FedBuff starts clients at the server, after IFCA, which needs the"),
    ):
        fitted(chain, sites=apart, **settings)


def test_a_message_names_the_data_module_that_its_user_knows() -> None:
    site = SiteData(tiny_images.data(), {0: 0}, torch.ones(CLIENTS))
    assert remedy(site, "held_out_batches(client)").endswith("define held_out_batches(client) in Tensors or a subclass")


class Seen(Monitor):
    """Notes the clients of each round."""

    def __init__(self) -> None:
        self.cohorts: list[list[int]] = []

    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        self.cohorts.append(list(cohort.clients))


class Wrong(SocketConnection):
    """Answers for client 4 of round 2 as ``way`` says."""

    way = ""

    def send(self, message: Message) -> None:
        if kind_of(message) is not None:
            super().send(message)
            return
        answer = unpack_incoming(message)
        if (answer.client, answer.number) != (4, 2):
            super().send(message)
            return
        assert answer.model is not None
        assert answer.result is not None
        if self.way == "gone":
            os._exit(1)
        elif self.way == "twice":
            super().send(message)
            super().send(message)
        elif self.way == "a pickle":
            super().send([pickle.dumps(answer.model)])
        elif self.way == "another round":
            super().send(pack_incoming(replace(answer, number=1)))
            super().send(pack_incoming(replace(answer, model=None, reason="the right answer")))
        elif self.way == "another client":
            super().send(pack_incoming(replace(answer, client=0)))
            super().send(pack_incoming(replace(answer, model=None, reason="the right answer")))
        elif self.way == "values of another":
            super().send(pack_incoming(replace(answer, result=replace(answer.result, client=0))))
        elif self.way == "a shape":
            super().send(pack_incoming(replace(answer, model=answer.model[1:])))
        elif self.way == "a dtype":
            super().send(pack_incoming(replace(answer, model=answer.model.double())))
        elif self.way == "a buffer":
            buffers = [None if value is None else value[None] for value in answer.result.buffers]
            super().send(pack_incoming(replace(answer, result=replace(answer.result, buffers=buffers))))
        elif self.way == "nan":
            super().send(pack_incoming(replace(answer, model=answer.model * torch.nan)))


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("gone", "client 4 is left out: its site is gone"),
        ("twice", "an answer for client 4 of round 2 is dropped"),
        ("a pickle", "client 4 is left out: expected a message of JSON and safetensors, got"),
        ("another round", "an answer for client 4 of round 1 is dropped"),
        ("another client", "an answer for client 0 of round 2 is dropped"),
        ("values of another", "client 4 is left out: expected values of client 4, got those of client 0"),
        ("a shape", r"client 4 is left out: expected the model to be float32 \(\d+,\), got float32 \(\d+,\)"),
        ("a dtype", r"client 4 is left out: expected the model to be float32 \(\d+,\), got float64 \(\d+,\)"),
        (
            "a buffer",
            r"client 4 is left out: expected the buffer network.1.running_mean to be float32 \(4,\), got",
        ),
        ("nan", "client 4 is left out: its update is not finite"),
    ],
)
def test_a_wrong_answer_costs_its_client_alone(way: str, told: str, tmp_path: Path) -> None:
    """The round goes on without client 4, which the line names; with a site that is gone, its two clients stay away."""
    wrong = type("OneWrong", (Wrong,), {"way": way})
    seen = Seen()
    settings: dict[str, Any] = {"on_bad_update": "skip"}
    with_wrong = sites(partial(fitted, list, **settings), CLIENTS, tmp_path, wrong)
    with with_wrong as apart, pytest.warns(UserWarning, match=told):
        fitted(list, seen, sites=apart, **settings)
    everyone = [0, 1, 2, 3, 4, 5]
    others = [client for client in everyone if client != 4]
    second = everyone if way == "twice" else others
    third = [0, 2, 3, 5] if way == "gone" else everyone
    assert seen.cohorts == [everyone, second, third]


class Failing(FederatedCallback):
    """Raises where client 4 trains in round 2."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        if (run.client, run.round) == (4, 2):
            run.module.no_such_thing()


def test_a_rule_that_raises_ends_its_site_alone(tmp_path: Path) -> None:
    """The server learns the error's type, and the class that raised it."""
    seen = Seen()
    apart = sites(partial(fitted, lambda: [Failing()], on_bad_update="skip"), CLIENTS, tmp_path)
    told = pytest.warns(UserWarning, match="client 4 is left out: AttributeError in Failing$")
    with apart as known, told:
        fitted(lambda: [Failing(), seen], sites=known, on_bad_update="skip")
    assert seen.cohorts == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 5], [0, 2, 3, 5]]


class Full(FederatedCallback):
    """Finds no space on the disk where client 4 trains in round 2."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        if (run.client, run.round) == (4, 2):
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_its_site_alone(tmp_path: Path) -> None:
    seen = Seen()
    settings: dict[str, Any] = {"on_bad_update": "skip"}
    apart = sites(partial(fitted, lambda: [Full()], **settings), CLIENTS, tmp_path)
    with apart as known, pytest.warns(UserWarning, match="client 4 is left out: OSError in Full$"):
        fitted(lambda: [Full(), seen], sites=known, **settings)
    assert seen.cohorts == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 5], [0, 2, 3, 5]]


class NoRoom(FederatedCallback):
    """Lets the site of client 4 write no more than 64 bytes into a file from round 2 on."""

    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        if (run.client, run.round) == (4, 2):
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))


def test_a_site_that_cannot_keep_a_value_says_so(tmp_path: Path) -> None:
    def chain() -> list[Callback]:
        return [Ditto(0.1), NoRoom()]

    told = pytest.warns(UserWarning, match="client 4 is left out: its site could not write what stays .*: File too la")
    with sites(partial(fitted, chain, on_bad_update="skip"), CLIENTS, tmp_path) as known, told:
        fitted(chain, sites=known, on_bad_update="skip")


def frozen() -> LightningModule:
    """The tiny classifier with 400,000 bytes of weights that do not train."""
    made: Any = tiny_images.client()
    still = nn.Linear(1, 100_000, bias=False).requires_grad_(False)
    made.network.add_module("still", nn.Sequential(nn.Flatten(), nn.Linear(3, 1), still, nn.Linear(100_000, 3)))
    made.network.still[1].requires_grad_(False)
    made.network.still[3].requires_grad_(False)
    return ImageClassifier(made.network, 3, optimizer=lambda params: torch.optim.SGD(params, lr=0.05))


def test_frozen_weights_are_sent_once_to_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And never back; the bits are those of a run here."""
    here = fitted(list, module=frozen)
    sent: list[tuple[str, int]] = []
    back: list[int] = []
    with sites(partial(fitted, list, module=frozen), CLIENTS, tmp_path) as apart:
        send, receive = apart.carrier.send, apart.carrier.receive

        def counted_send(site: str, message: Message) -> None:
            sent.append((site, sum(map(len, message))))
            send(site, message)

        def counted_receive(timeout: float) -> Heard | Gone:
            heard = receive(timeout)
            assert isinstance(heard, Heard)
            back.append(sum(map(len, heard.message)))
            return heard

        monkeypatch.setattr(apart.carrier, "send", counted_send)
        monkeypatch.setattr(apart.carrier, "receive", counted_receive)
        there = fitted(list, sites=apart, module=frozen)
    for name, value in here.items():
        assert torch.equal(there[name], value), name
    large = [site for site, size in sent if size > 400_000]
    assert sorted(large) == sorted(SITES)
    assert len(sent) == CLIENTS * ROUNDS
    assert max(back) < 100_000
