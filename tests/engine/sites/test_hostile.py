"""Peers that mean harm: a site that speaks to a real server, and a server that speaks to a real site."""

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lib import tiny_images
from lib.at_sites import remote, sites
from lib.toy import trainer
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn

from fl_lightning import (
    Cohort,
    ConfigurationError,
    FederatedCallback,
    FederatedOrchestrator,
    LocalRun,
    Monitor,
    Server,
)
from fl_lightning.callbacks import ConflictMonitor, Ditto, FedAvgM, FedCM, Scaffold
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.sites.data import SiteData
from fl_lightning.engine.sites.facts import (
    OWN_PATH,
    Start,
    Welcome,
    buffer_lines,
    check_examples,
    kind_of,
    pack_told,
)
from fl_lightning.engine.sites.messages import (
    NAMES,
    Incoming,
    Message,
    pack_incoming,
    pack_outgoing,
    pack_tensors,
    unpack_incoming,
)
from fl_lightning.engine.sites.site import Site, come
from fl_lightning.engine.sites.sites import Sites
from fl_lightning.engine.sites.sockets import SocketConnection

from .test_coming import facts, pairs

CLIENTS = 6
VARIANCE, COUNT = 1, 2  # places of running_var and num_batches_tracked among the buffers


class Logging(FederatedCallback):
    """Logs two metrics where a client trains, as an honest module does."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        run.log("train/accuracy", 0.5)
        run.log("train/worst", 0.25, reduce_fx="min", prog_bar=True)


def chain() -> list[Callback]:
    """A rule that sends vectors, one that keeps something, one that acts at the server alone, and a monitor."""
    return [Scaffold("I"), Ditto(0.1), FedAvgM(), Logging(), ConflictMonitor()]


def fitted(
    callbacks: Sequence[Callback],
    rounds: int,
    sites: Sites | None = None,
    place: Callable[[Any], FederatedData] = lambda data: data,
    module: Callable[[], LightningModule] = tiny_images.client,
    **settings: Any,
) -> FederatedOrchestrator:
    """Train some rounds."""
    orchestrator = FederatedOrchestrator(module(), **settings)
    orchestrator.sites = sites
    placed = place(tiny_images.data())
    trainer(*callbacks, rounds=rounds).fit(orchestrator, datamodule=remote(placed, sites) if sites else placed)
    return orchestrator


# What a hostile site sends. An honest one sends, of each round: two metrics of its own by name, with words about one of
# them; buffers of the shapes that it got, no variance below 0, a count that has grown by its batches; the vector of
# Scaffold's option I, (P,) in float32; and the round's number as the mark of Ditto's own model.

Attack = Callable[[Incoming], Message]


def other(**values: Any) -> Attack:
    """Send other values."""

    def attack(answer: Incoming) -> Message:
        assert answer.result is not None
        return pack_incoming(replace(answer, result=replace(answer.result, **values)))

    return attack


def logged(name: str) -> Attack:
    """Send one more metric."""

    def attack(answer: Incoming) -> Message:
        assert answer.result is not None
        return other(metrics={**answer.result.metrics, name: 1e9})(answer)

    return attack


def buffer(place: int, value: Tensor | None) -> Attack:
    """Send another buffer."""

    def attack(answer: Incoming) -> Message:
        assert answer.result is not None
        buffers = list(answer.result.buffers)
        buffers[place] = value
        return other(buffers=buffers)(answer)

    return attack


def kept(rule: str, name: str) -> Attack:
    """Send the mark of something else that stays."""

    def attack(answer: Incoming) -> Message:
        assert answer.result is not None
        return other(stays={**answer.result.stays, (rule, name): torch.tensor(2)})(answer)

    return attack


def ending(answer: Incoming) -> Message:
    """Say, as an earlier version could, that the run ends for all."""
    head = {"client": answer.client, "number": answer.number, "less": False, "reason": "stop\x1b[2J\nall", "ends": True}
    return [json.dumps(head).encode()]


def many(prefix: str) -> Attack:
    """Send almost as many new metrics as an answer may have."""

    def attack(answer: Incoming) -> Message:
        assert answer.result is not None
        flood = {f"{prefix}/{number}": 0.0 for number in range(NAMES - 10)}
        return other(metrics={**answer.result.metrics, **flood})(answer)

    return attack


FROM_A_SITE: dict[str, tuple[Attack, str]] = {
    "the metric that decides which model is best": (logged("val/top1"), "expected metrics of clients, got val/top1"),
    "a test's metric": (logged("test/loss"), "expected metrics of clients, got test/loss, which the server logs"),
    "the round": (logged("round"), "expected metrics of clients, got round"),
    "a count of the server": (logged("clients/late"), "expected metrics of clients, got clients/late"),
    "a monitor's metric": (logged("conflict/ratio"), "expected metrics of clients, got conflict/ratio"),
    "a metric that the module has logged at the server": (logged("accuracy"), "expected metrics of clients, got accur"),
    "a formula": (logged("=HYPERLINK(1)"), "expected names of metrics that begin with a letter or digit"),
    "a sum": (logged("+1"), "expected names of metrics"),
    "an escape": (logged("\x1b[2J"), "expected names of metrics"),
    "an escape within": (logged("a\x1b[2J"), "expected names of metrics"),
    "two lines": (logged("a\nb"), "expected names of metrics"),
    "an empty name": (logged(""), "expected names of metrics"),
    "a name of 10 MB": (logged("a" * 10_000_000), "expected names of metrics"),
    "words about another metric": (other(shown={"round": {"prog_bar": True}}), "expected words about metrics that are"),
    "words that are none": (
        other(shown={"train/worst": {"step": True}}),
        "expected shown to be True or False for prog",
    ),
    "a reduction of another metric": (other(reductions={"val/top1": "max"}), "expected words about metrics that are"),
    "a negative variance": (
        buffer(VARIANCE, torch.full((4,), -5.0)),
        "variances from 0 on in the buffer network.1.run",
    ),
    "a count of 10^15": (buffer(COUNT, torch.tensor(10**15)), "network.1.num_batches_tracked to count 1,000,000"),
    "a negative count": (buffer(COUNT, torch.tensor(-1)), "network.1.num_batches_tracked to count"),
    "an infinite variance": (buffer(VARIANCE, torch.full((4,), torch.inf)), "one of its buffers is not finite"),
    "no variance": (buffer(VARIANCE, None), r"network.1.running_var to be float32 \(4,\), got nothing"),
    "examples in a buffer": (buffer(VARIANCE, torch.ones(9, 64)), r"running_var to be float32 \(4,\), got float32 \(9"),
    "a vector of another shape": (other(vectors={"scaffold": torch.ones(2)}), r"the vector scaffold to be float32 \("),
    "a vector of another dtype": (
        other(vectors={"scaffold": torch.ones(291).double()}),
        r"the vector scaffold to be float32 \(291,\), got float64 \(291,\)",
    ),
    "no vector": (other(vectors={}), r"the vector scaffold to be float32 \(291,\), got nothing"),
    "a vector of no rule": (
        other(vectors={"scaffold": torch.ones(291), "more\n": torch.ones(2)}),
        "expected vectors that a rule names in its method sends, got more",
    ),
    "what stays for a rule that keeps nothing": (
        kept("FedAvgM", "kept/velocity"),
        "expected marks of what the rules keep at the site, got kept/velocity of FedAvgM",
    ),
    "what stays for no rule": (kept("Nobody", "kept/own"), "expected marks of what the rules keep at the site"),
    "another weight": (other(num_samples=10**6), "expected 9 training examples, as its site has told, got 1,000,000"),
    "steps without end": (
        other(num_steps=2**60),
        "expected num_steps to be a number of steps, got 1152921504606846976",
    ),
    "a loss scale": (other(loss_scale=(1.0, 2)), "expected a loss scale if asked"),
    "an end for all": (ending, r"client 4 is left out: stop\\x1b\[2J all$"),
    "1,000 new names": (many("a"), ""),
    "1,000 others": (many("b"), "expected 1,000 names in a run at most"),
}


class Hostile(SocketConnection):
    """Answers for client 4 honestly in round 1, and then in each round in another way."""

    def send(self, message: Message) -> None:
        if kind_of(message) is None:
            answer = unpack_incoming(message)
            if answer.client == 4 and answer.number > 1:
                attack, _ = list(FROM_A_SITE.values())[answer.number - 2]
                message = attack(answer)
        super().send(message)


class Accuracy(Monitor):
    """Logs a metric at the server whose name says nothing of it."""

    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        orchestrator.log_round("accuracy", 0.5)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, str]:
    """What the server says of each round of a run with a hostile site; the run goes on to its end."""
    rounds = len(FROM_A_SITE) + 1
    lines: dict[int, str] = {}
    folder = tmp_path_factory.mktemp("hostile")
    with (
        sites(lambda *more, **given: fitted([*chain(), *more], rounds, **given), CLIENTS, folder, Hostile) as apart,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        ended = fitted([*chain(), Accuracy()], rounds, sites=apart)
    assert ended.rounds_done == rounds
    assert all(value.isfinite().all() for value in ended.client.state_dict().values())
    for warning in caught:
        if found := re.match(r"round (\d+): client ", str(warning.message)):
            lines[int(found[1])] = lines.get(int(found[1]), "") + str(warning.message)
    return lines


@pytest.mark.parametrize("name", FROM_A_SITE)
def test_a_hostile_site_is_left_out(name: str, told: Mapping[int, str]) -> None:
    """One line names its client, and why; nobody else is left out, and the run goes on."""
    number = list(FROM_A_SITE).index(name) + 2
    _, words = FROM_A_SITE[name]
    line = told.get(number, "")
    assert line.startswith(f"round {number}: client 4 is left out: ") == bool(words), line
    assert re.search(words, line), line
    assert line.isprintable()
    assert len(line) < 700


def test_an_honest_answer_is_taken_in(told: Mapping[int, str]) -> None:
    assert 1 not in told


@pytest.mark.parametrize(
    "wrong", [{"size": 2**70}, {"class_counts": [2**70, 1]}, {"scaling": [["\x1b[2J"]]}, {"scaling": "mean"}]
)
def test_a_welcome_with_numbers_that_are_none_is_refused(wrong: dict[str, Any]) -> None:
    """An honest one counts examples, in all and by class, and has numbers for mean and standard deviation."""
    with pairs() as made:
        made.tell("anna", facts(0, **wrong))
        with pytest.warns(UserWarning, match="site anna is refused: expected the welcome of a site, got another"):
            made.sites.let_back()


def test_a_hostile_welcomes_settings_are_one_short_line() -> None:
    """An honest one has the server's settings."""
    settings = {f"a\x1b[2J\n{number}": "\x1b[2J" * 100 for number in range(100)}
    with pairs() as made:
        made.tell("anna", settings=settings)
        with pytest.warns(UserWarning, match="site anna is refused: expected site anna to have the settings") as caught:
            made.sites.let_back()
    (line,) = [str(warning.message) for warning in caught]
    assert line.isprintable()
    assert len(line) < 1000


def test_a_site_may_tell_of_no_more_examples_than_it_is_allowed() -> None:
    """10 examples of client 0, and 11 of client 1: the weights of a site's update."""
    welcome = Welcome("anna", [facts(0), facts(1)], {})
    check_examples(welcome, 21)
    check_examples(welcome, None)
    with pytest.raises(ConfigurationError, match=r"expected 20 training examples of site anna at most .*, got 21"):
        check_examples(welcome, 20)


# A hostile server, and what leaves a site


class OfServer:
    """Carries the messages of a hostile server to a site, and notes what the site sends.

    Args:
        attack: makes other messages of an honest one, or nothing.
    """

    def __init__(self, attack: Callable[[Any], Message] | None = None) -> None:
        self.sent: list[Message] = []
        self.orchestrator: Any = None
        self._attack = attack

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def receive(self) -> Message | None:
        if len(self.sent) > 1:
            return None
        outgoing = self.orchestrator._begin_round(self.orchestrator._fit).outgoing(0)  # as an honest server makes it
        if self._attack is not None:
            outgoing = self._attack(outgoing)
        return pack_outgoing(outgoing, pack_tensors({"params": outgoing.params}))


class Meets(Callback):
    """Lets a connection know the orchestrator."""

    def __init__(self, connection: OfServer) -> None:
        self._connection = connection

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._connection.orchestrator = pl_module


def at_site(
    folder: Path, connection: OfServer, *rules: Callback, module: Callable[[], LightningModule] = tiny_images.client
) -> None:
    """Train what a server asks for, at a site that has all data."""

    def place(data: Any) -> FederatedData:
        data.setup("fit")
        return SiteData(data, {client: client for client in range(CLIENTS)}, data.sizes)

    fitted([*rules, Meets(connection), Site(connection, folder)], 1, place=place, module=module)


def wrong(**values: Any) -> Callable[[Any], Any]:
    return lambda outgoing: replace(outgoing, **values)


def state(rule: str, name: str, value: Tensor) -> Callable[[Any], Any]:
    return lambda outgoing: replace(outgoing, states={**outgoing.states, rule: {name: value}})


def with_buffer(place: int, value: Tensor | None) -> Callable[[Any], Any]:
    def attack(outgoing: Any) -> Any:
        buffers = list(outgoing.buffers)
        buffers[place] = value
        return replace(outgoing, buffers=buffers)

    return attack


# An honest server sends (291,) finite parameters, the module's buffers, no factors at constant rates, no loss scale
# without a GradScaler, and of the rules' states what they broadcast, or keep for the client, in the shapes that the
# rules expect.
FROM_THE_SERVER: dict[str, tuple[Callable[[Any], Any], str]] = {
    "rates times 1e9": (
        wrong(factors=[[1e9]]),
        r"expected factors from 0 to 1,000 on the learning rates of \[1\] param",
    ),
    "rates times -1": (wrong(factors=[[-1.0]]), "expected factors from 0 to 1,000"),
    "rates times nan": (wrong(factors=[[float("nan")]]), "expected factors from 0 to 1,000"),
    "rates of other groups": (wrong(factors=[[1.0, 1.0]]), r"learning rates of \[1\] parameter groups, got \[\[1.0, 1"),
    "factors that are none": (wrong(factors=7), "expected factors from 0 to 1,000"),
    "another model": (wrong(params=torch.zeros(7)), r"expected the model to be float32 \(291,\), got float32 \(7,\)"),
    "another dtype": (
        wrong(params=torch.zeros(291).double()),
        r"expected the model to be float32 \(291,\), got float64",
    ),
    "a model of nan": (wrong(params=torch.full((291,), torch.nan)), "expected a finite model, got infinite or nan"),
    "another buffer": (
        with_buffer(VARIANCE, torch.ones(5)),
        r"network.1.running_var to be float32 \(4,\), got float32",
    ),
    "no buffer": (with_buffer(VARIANCE, None), "network.1.running_var to be .*, got nothing"),
    "buffers without end": (wrong(buffers=[None] * 1000), "expected 3 buffers, got 1000"),
    "a loss scale": (wrong(loss_scale=(1.0, 2)), "expected a loss scale for a GradScaler alone"),
    "the state of no rule": (
        state("Nobody", "c", torch.ones(2)),
        "expected what this site's rules receive, got c of N",
    ),
    "a state that is no broadcast": (state("FedCM", "secret", torch.ones(2)), "rules receive, got secret of FedCM"),
    "a state of another shape": (
        state("FedCM", "direction", torch.ones(1)),
        r"FedCM expects direction to be \(291,\), .*, got \(1,\) from the server",
    ),
    "a mark that is none": (state("Ditto", "kept/own/0", torch.ones(3)), "rules receive, got kept/own/0 of Ditto"),
}


@pytest.mark.parametrize("name", FROM_THE_SERVER)
def test_a_site_refuses_a_hostile_server(name: str, tmp_path: Path) -> None:
    """One line, and nothing of the data has been sent."""
    attack, words = FROM_THE_SERVER[name]
    connection = OfServer(attack)
    with pytest.raises(ConfigurationError, match=words):
        at_site(tmp_path, connection, FedCM(0.1), Ditto(0.1))
    assert all(len(message) == 1 for message in connection.sent)


def test_a_site_serves_an_honest_server(tmp_path: Path) -> None:
    connection = OfServer()
    at_site(tmp_path, connection, FedCM(0.1), Ditto(0.1))
    answer = unpack_incoming(connection.sent[1], lambda client: connection.orchestrator.read_buffers())
    assert answer.model is not None
    assert answer.model.shape == (291,)


SETTINGS = {"model.local_epochs": 2, "data.train": OWN_PATH}


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (Start([10, 11], SETTINGS), r"expected the server to know 3 clients, got 2: correct network\.sites"),
        (Start([9, 11, 12], SETTINGS), "to count 10 training examples of client 0, as this site has told it, got 9"),
        (Start([10, 2**80, 12], SETTINGS), "expected a server's start, got another: expected sizes from 0 to"),
        (Start([10, -1, 12], SETTINGS), "expected a server's start, got another: expected sizes from 0 to"),
        (Start([10, 11, 12], dict.fromkeys(SETTINGS, OWN_PATH)), r"model\.local_epochs \(2 here, a path of its own th"),
    ],
)
def test_a_site_refuses_what_a_server_says_of_it(start: Start, words: str) -> None:
    """An honest server says the sizes that the sites have told, 10 of this one, and has its settings but for places."""

    class Says:
        def send(self, message: Message) -> None: ...

        def receive(self) -> Message:
            return pack_told(said)

    welcome = Welcome("anna", [facts(0)], SETTINGS)
    said = Start([10, 11, 12], {**SETTINGS, "data.train": "elsewhere.csv"})
    assert come(Says(), welcome, 3).sizes == [10, 11, 12]
    said = start
    with pytest.raises(ConfigurationError, match=words):
        come(Says(), welcome, 3)


class Remembering(nn.Module):
    """Lets images pass, and remembers them in a buffer that is empty at first."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(0, 64))

    def forward(self, images: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, images.flatten(1).detach()])
        return images


def remembering() -> LightningModule:
    made: Any = tiny_images.client()
    made.network.insert(0, Remembering())
    return made


def test_examples_in_a_buffer_do_not_leave_a_site(tmp_path: Path) -> None:
    """The site's line names the buffer; the server learns that, and no number."""
    connection = OfServer()
    words = r"expected the buffer network\.0\.seen to be float32 \(0, 64\), got float32 \(9, 64\): what training puts"
    with pytest.raises(ConfigurationError, match=words):
        at_site(tmp_path, connection, module=remembering)
    assert len(connection.sent) == 2
    (head,) = connection.sent[1]
    assert unpack_incoming([head]).reason == "TrainingError"


def test_the_buffers_that_leave_a_site_are_listed() -> None:
    assert buffer_lines(remembering()) == [
        "network.0.seen: float32 (0, 64)",
        "network.2.running_mean: float32 (4,)",
        "network.2.running_var: float32 (4,)",
        "network.2.num_batches_tracked: int64 ()",
    ]


class Quoting(FederatedCallback):
    """Fails with a patient's row in its words."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        raise ValueError("Mrs Smith, born 1950, diabetic")


class Reading(nn.Module):
    """Fails with a patient's row in its words."""

    def forward(self, images: Tensor) -> Tensor:
        raise ValueError("Mrs Smith, born 1950, diabetic")


def reading() -> LightningModule:
    made: Any = tiny_images.client()
    made.network.insert(0, Reading())
    return made


def test_the_words_of_a_rules_error_stay_at_the_site(tmp_path: Path) -> None:
    connection = OfServer()
    with pytest.raises(Exception, match="Mrs Smith"):
        at_site(tmp_path, connection, Quoting())
    assert unpack_incoming(connection.sent[1]).reason == "ValueError in Quoting"
    assert b"Smith" not in b"".join(connection.sent[1])


def test_the_words_of_a_modules_error_stay_at_the_site(tmp_path: Path) -> None:
    connection = OfServer()
    with pytest.warns(UserWarning, match="round 1: client 0 is left out: ValueError: Mrs Smith"):
        at_site(tmp_path, connection, module=reading)
    assert unpack_incoming(connection.sent[1]).reason == "ValueError in Reading"
    assert b"Smith" not in b"".join(connection.sent[1])
