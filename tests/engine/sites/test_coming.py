"""Who is let in, who comes back, and how long a round waits: sites whose messages these tests write themselves."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lib.at_sites import SITES, sites
from lib.command import rows
from lib.sockets import SocketCarrier, SocketConnection, read, write

from fl_lightning import ConfigurationError, TrainingError
from fl_lightning.engine.sites.events import Came, Gone, Message
from fl_lightning.engine.sites.facts import (
    Facts,
    Start,
    Welcome,
    check_alike,
    pack_end,
    pack_ready,
    pack_told,
    unpack_start,
)
from fl_lightning.engine.sites.messages import pack
from fl_lightning.engine.sites.site import come
from fl_lightning.engine.sites.sites import Sites

from .test_sites import CLIENTS, Seen, fitted

SETTINGS = {"model.local_epochs": 2, "seed_everything": 1}


def facts(client: int, **other: Any) -> Facts:
    told = Facts(
        client, size=10 + client, class_counts=[4, 6 + client], class_names=None, scaling=None, fingerprint=f"{client}"
    )
    return replace(told, **other)


class Pairs:
    """Sockets between a server and sites of one client each."""

    def __init__(self, **settings: Any) -> None:
        self.pairs = {site: socket.socketpair() for site in SITES}
        self.carrier = SocketCarrier({site: here for site, (here, _) in self.pairs.items()})
        self.lines: list[str] = []
        clients = {site: [client] for client, site in enumerate(SITES)}
        self.sites = Sites(self.carrier, clients, SETTINGS, say=self.lines.append, **settings)

    def tell(self, site: str, *told: Facts, name: str | None = None, settings: Any = None) -> None:
        """Let a site say that it comes."""
        welcome = Welcome(name or site, told or [facts(SITES.index(site))], SETTINGS if settings is None else settings)
        write(self.pairs[site][1], pack_told(welcome))

    def heard(self, site: str) -> Any:
        message = read(self.pairs[site][1])
        assert message is not None
        return unpack_start(message)

    def all_come(self) -> None:
        for site in SITES:
            self.tell(site)
            write(self.pairs[site][1], pack_ready())
        self.sites.gather()


@contextmanager
def pairs(**settings: Any) -> Iterator[Pairs]:
    made = Pairs(**settings)
    try:
        yield made
    finally:
        made.carrier.stop()
        for _, there in made.pairs.values():
            there.close()


def test_all_are_told_the_sizes_once_all_are_there() -> None:
    with pairs() as made:
        made.all_come()
        for site in SITES:
            assert made.heard(site).sizes == [10, 11, 12]
        assert made.sites.facts == {client: facts(client) for client in range(3)}
        assert made.lines == [f"{site} is there: {10 + client} training examples" for client, site in enumerate(SITES)]


def another_model(made: Pairs) -> None:
    made.tell("anna", settings={**SETTINGS, "model.local_epochs": 3})


def another_name(made: Pairs) -> None:
    made.tell("anna", name="berlin")


def another_client(made: Pairs) -> None:
    made.tell("anna", facts(1))


def other_classes(made: Pairs) -> None:
    made.tell("berlin")
    made.tell("anna", facts(0, class_counts=[1, 2, 3]))


def named_classes(made: Pairs) -> None:
    made.tell("berlin", facts(1, class_names=["ill", "odd", "well"]))
    made.tell("anna", facts(0, class_names=["dead", "well"]))


def another_order(made: Pairs) -> None:
    made.tell("berlin", facts(1, class_names=["well", "ill"]))
    made.tell("anna", facts(0, class_names=["ill", "well"]))


def another_scale(made: Pairs) -> None:
    made.tell("berlin")
    made.tell("anna", facts(0, scaling=[[0.5], [0.2]]))


def other_columns(made: Pairs) -> None:
    made.tell("berlin", facts(1, columns=["age", "pressure"]))
    made.tell("anna", facts(0, columns=["pressure", "age"]))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            other_columns,
            r"site anna has the columns \['pressure', 'age'\], and site berlin \['age', 'pressure'\]: name them in",
        ),
        (
            another_model,
            r"expected site anna to have the settings .*: model\.local_epochs \(2 here, 3 there\): tr",
        ),
        (another_name, r"expected site anna with the clients \[0\], got berlin with the clients \[0\]"),
        (another_client, r"expected site anna with the clients \[0\], got anna with the clients \[1\]"),
        (
            another_scale,
            r"site anna scales inputs by mean and .* \[\[0\.5\], \[0\.2\]\], and site berlin by None",
        ),
        (other_classes, r"sites anna and berlin have different classes \(3 at anna, 2 at berlin\): let the data"),
        (
            named_classes,
            r"sites anna and berlin have different classes \(anna lacks ill, odd; berlin lacks dead\): let the data",
        ),
        (
            another_order,
            r"sites anna and berlin have .* \(\['ill', 'well'\] at anna, \['well', 'ill'\] at berlin\): let the",
        ),
    ],
)
def test_who_does_not_fit_is_told_why(wrong: Callable[[Pairs], None], told: str) -> None:
    with pairs() as made:
        wrong(made)
        with pytest.warns(UserWarning, match=f"site anna is refused: {told}"):
            made.sites.let_back()
        assert made.heard("anna").reason
        assert "anna" in made.sites.missing


def test_who_lacks_a_config_is_told_so() -> None:
    """Of settings that both have, one may be a place."""
    mean = {"data.mean": [0.5]}
    with pytest.raises(
        ConfigurationError, match="; this machine may lack a config that the other one has, such as that"
    ):
        check_alike(SETTINGS, SETTINGS | mean, "the server")
    with pytest.raises(ConfigurationError, match=r"; the server may lack a config .* pass it as a second --config$"):
        check_alike(SETTINGS | mean, SETTINGS, "the server")
    with pytest.raises(ConfigurationError, match="same options, or name what says where a machine has its data"):
        check_alike(SETTINGS | mean, SETTINGS | {"data.mean": [0.4]}, "the server")


def test_a_site_refuses_a_server_with_other_settings() -> None:
    here, there = socket.socketpair()
    write(here, pack_told(Start([10, 11, 12], {**SETTINGS, "seed_everything": 2})))
    with pytest.raises(ConfigurationError, match=r"the server to have .*: seed_everything \(1 here, 2 there\)"):
        come(SocketConnection(there), Welcome("anna", [facts(0)], SETTINGS), 3)
    here.close()
    there.close()


@pytest.mark.parametrize("ends", ["with a reason", "without"])
def test_a_server_that_ends_before_it_lets_a_site_in_is_lost(ends: str) -> None:
    """The site waits for another one, as for a server that is killed."""
    here, there = socket.socketpair()
    if ends == "with a reason":
        write(here, pack_end("it was stopped"))
    here.shutdown(socket.SHUT_WR)
    told = "ended before it let this site in" + (": it was stopped$" if ends == "with a reason" else "$")
    with pytest.raises(ConnectionError, match=told):
        come(SocketConnection(there), Welcome("anna", [facts(0)], SETTINGS), 3)
    here.close()
    there.close()


@pytest.mark.parametrize("told", ["a path of its own", None])
def test_no_value_of_a_peer_stands_for_any(told: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"data\.target \(ill here, .* there\): .* the data module's places"):
        check_alike({**SETTINGS, "data.target": "ill"}, {**SETTINGS, "data.target": told}, "the server")


def test_settings_that_are_alike_pass() -> None:
    check_alike(SETTINGS, dict(reversed(SETTINGS.items())), "the server")


def test_a_welcome_that_is_none_is_refused() -> None:
    with pairs() as made:
        write(made.pairs["anna"][1], pack({"kind": "welcome", "site": "anna"}))
        with pytest.warns(UserWarning, match="anna is refused: expected the welcome of a site, got another"):
            made.sites.let_back()


def test_a_site_that_comes_back_has_the_data_that_it_had() -> None:
    with pairs() as made:
        made.all_come()
        here, there = socket.socketpair()
        made.pairs["anna"][1].close()
        assert made.sites.receive(None) == Gone("anna")
        assert made.sites.missing == ["anna"]
        with pytest.raises(ConnectionError, match="it has not come back"):
            made.sites.send(0, [b""])
        made.carrier.let_back("anna", here)
        made.pairs["anna"] = (here, there)
        made.tell("anna", facts(0, fingerprint="another"))
        with pytest.warns(UserWarning, match=r"anna has other data than when the run began \(10 training examples"):
            made.sites.let_back()
        assert made.heard("anna").reason
        made.tell("anna")
        made.sites.let_back()
        assert made.heard("anna").sizes == [10, 11, 12]
        assert made.sites.missing == ["anna"]  # it cannot train yet
        write(there, pack_ready())
        assert made.sites.receive(None) == Came("anna")
        assert made.sites.missing == []


def test_a_run_that_goes_on_begins_with_those_who_are_there() -> None:
    known = {client: facts(client) for client in range(3)}
    with pairs(facts=known, min_clients=2) as made:
        for site in ("anna", "cork"):
            made.tell(site)
            write(made.pairs[site][1], pack_ready())
        made.sites.gather()
        assert made.sites.missing == ["berlin"]
        assert made.sites.present([0, 1, 2]) == 2


class Silent(SocketConnection):
    """Never answers for client 4 of round 2."""

    def send(self, message: Message) -> None:
        if b'"client": 4, "number": 2' not in message[0]:
            super().send(message)


def test_silence_costs_its_client_alone(tmp_path: Path) -> None:
    """After the deadline the round goes on without the client, which is counted as late."""
    seen = Seen()
    settings: dict[str, Any] = {"on_bad_update": "skip"}
    apart = sites(partial(fitted, list, **settings), CLIENTS, tmp_path, Silent, deadline=2.0)
    told = r"round 2: client 4 is left out: its site has not answered within 2 s"
    with apart as known, pytest.warns(UserWarning, match=told):
        fitted(list, seen, sites=known, folder=tmp_path / "run", **settings)
    everyone = [0, 1, 2, 3, 4, 5]
    assert seen.cohorts == [everyone, [0, 1, 2, 3, 5], everyone]
    late = {row["round"]: row["clients/late"] for row in rows(tmp_path / "run/metrics.csv") if "clients/late" in row}
    assert late == {2: 1, 3: 0}


def test_too_few_answers_end_the_run(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"on_bad_update": "skip"}
    apart = sites(partial(fitted, list, **settings), CLIENTS, tmp_path, Silent, deadline=5.0, min_clients=6)
    with (
        apart as known,
        pytest.raises(TrainingError, match="round 2: 5 of 6 clients have answered, expected at"),
    ):
        fitted(list, sites=known, **settings)
