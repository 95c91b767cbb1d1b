"""A server asks its sites for statistics: in the open, or as a sum of which nobody knows a summand."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lib.command import process, refused, run
from lib.identities import Authority
from lib.sockets import SocketCarrier, SocketConnection

from fl_lightning import ConfigurationError, TrainingError
from fl_lightning.datamodules import Digits
from fl_lightning.engine.sites.events import Gone, Heard, Message
from fl_lightning.engine.sites.facts import Welcome
from fl_lightning.engine.sites.messages import pack, unpack_plain
from fl_lightning.engine.sites.secure.masks import Masks
from fl_lightning.engine.sites.site import come
from fl_lightning.engine.sites.sites import Sites
from fl_lightning.network.hidden import Outline
from fl_lightning.network.kits import site_kit
from fl_lightning.network.statistics import Statistics
from fl_lightning.network.survey import ASKED, FIT, ask, ask_for_sum, tell, tell_end, tell_for_sum

from .test_command import RUN, command_of, joined, kits, there

SITES = ["anna", "berlin", "cork"]
AUTHORITY = Authority()
CERTAIN = 400.0  # chi-square of 255 degrees of freedom, which noise exceeds once in 10 million times
Tell = Callable[[str, SocketConnection], None]

__all__ = ["kits", "there"]  # fixtures


def told_of(frame: pd.DataFrame, classes: list[str]) -> Statistics:
    """Statistics of a table, by pandas; its last column has the class."""
    values = frame.iloc[:, :-1]
    counts = [int((frame.iloc[:, -1] == name).sum()) for name in classes]
    squares = ((values - values.mean()) ** 2).sum()
    columns = list(values.columns)
    return Statistics(
        len(frame), classes, counts, columns, [len(frame)] * len(columns), list(values.sum()), list(squares)
    )


def tables() -> dict[str, tuple[pd.DataFrame, list[str]]]:
    """Columns of years, whose deviation is a small part of their mean, of doses and of incomes; cork has no class c."""
    draw = np.random.default_rng(0)
    made = {}
    for number, (site, size) in enumerate({"anna": 300, "berlin": 7, "cork": 60}.items()):
        classes = ["a", "b"] if site == "cork" else ["a", "b", "c"]
        columns = {
            "year": 2000 + number + draw.normal(scale=0.01, size=size),
            "dose": draw.lognormal(size=size) * 1e-12,
            "income": -draw.lognormal(size=size) * 1e9,
            "ill": draw.choice(classes, size=size),
        }
        made[site] = pd.DataFrame(columns), classes
    return made


@contextmanager
def telling(tell: Tell) -> Iterator[tuple[SocketCarrier, dict[str, Exception]]]:
    """Let each site tell, in a thread; yields the server's carrier, and the sites' errors when it is left."""
    pairs = {site: socket.socketpair() for site in SITES}
    errors: dict[str, Exception] = {}

    def site(name: str) -> None:
        try:
            tell(name, SocketConnection(pairs[name][1]))
        except Exception as error:
            errors[name] = error
        finally:
            pairs[name][1].close()

    threads = [threading.Thread(target=site, args=(name,), daemon=True) for name in SITES]
    for thread in threads:
        thread.start()
    carrier = SocketCarrier({name: here for name, (here, _) in pairs.items()})
    try:
        yield carrier, errors
    finally:
        carrier.stop()
        for thread in threads:
            thread.join(20)


def masks_of(site: str) -> Masks:
    return Masks(site, FIT, AUTHORITY.identity(site))


def hidden(made: dict[str, tuple[pd.DataFrame, list[str]]]) -> Tell:
    def site(name: str, connection: SocketConnection) -> None:
        tell_for_sum(connection, told_of(*made[name]), masks_of(name), SITES, lambda line: None)

    return site


def silent(line: str) -> None:
    pass


def test_a_sum_is_what_pandas_computes_on_the_joined_rows() -> None:
    """To the last bits, where sums of squares about 0 in float64 would lose ten digits of the years' deviation."""
    made = tables()
    with telling(hidden(made)) as (carrier, errors):
        together = ask_for_sum(carrier, SITES, 5, silent)
    rows = pd.concat(frame for frame, _ in made.values())
    assert not errors
    assert together.mean == pytest.approx(rows.iloc[:, :-1].mean().tolist(), rel=1e-14)
    assert together.std == pytest.approx(rows.iloc[:, :-1].std(ddof=0).tolist(), rel=1e-10)
    assert (together.size, together.classes) == (367, ["a", "b", "c"])
    assert together.counts == [int((rows["ill"] == name).sum()) for name in "abc"]


def test_what_a_site_tells_the_server_hidden_is_noise() -> None:
    """Each byte of a summand is evenly distributed: the numbers are small, so that most of their bytes would be 0."""
    names = [f"column {number}" for number in range(200)]
    told = {site: Statistics(9, None, [], names, [9] * 200, [1.0] * 200, [0.5] * 200) for site in SITES}
    seen: list[bytes] = []

    def site(name: str, connection: SocketConnection) -> None:
        tell_for_sum(connection, told[name], masks_of(name), SITES, silent)

    with telling(site) as (carrier, errors):
        receive = carrier.receive

        def watched(timeout: float) -> Heard | Gone:
            heard = receive(timeout)
            if isinstance(heard, Heard):
                seen.extend(heard.message[1:])
            return heard

        carrier.receive = watched  # type: ignore[method-assign]  # looks at what passes
        together = ask_for_sum(carrier, SITES, 0, silent)
    assert (together.size, together.mean[0], len(seen), errors) == (27, 3 / 27, 3, {})
    for summand in seen:
        counts = np.bincount(np.frombuffer(summand, dtype=np.uint8), minlength=256)
        expected = len(summand) / 256
        assert ((counts - expected) ** 2 / expected).sum() < CERTAIN


def test_statistics_in_the_open_arrive() -> None:
    made = tables()
    said: list[str] = []
    with telling(lambda name, connection: tell(connection, told_of(*made[name]))) as (carrier, errors):
        told = ask(carrier, SITES, said.append)
    assert told == {name: told_of(*made[name]) for name in SITES}
    order = [line.partition(" ")[0] for line in said]
    assert sorted(order) == SITES
    for number, line in enumerate(said):
        left = ", ".join(name for name in SITES if name not in order[: number + 1])
        assert line == f"{order[number]} has told its statistics" + (f"; waiting for {left}" if left else "")
    assert not errors


def test_a_site_that_would_train_is_told_to_tell() -> None:
    said: list[str] = []

    def stop(line: str) -> None:
        said.append(line)
        if len(said) == len(SITES):
            raise KeyboardInterrupt  # before the last one is told

    def site(name: str, connection: SocketConnection) -> None:
        come(connection, Welcome(name, [], {}), 3)

    with telling(site) as (carrier, errors), pytest.raises(KeyboardInterrupt):
        ask(carrier, SITES, stop)
    assert said[0].partition(" ")[2].startswith("is refused: the server asks for statistics, and does not train: join")
    told = "the server refuses this site: the server asks for statistics, and does not train: join --statistics"
    assert [str(error) for error in errors.values()] == [told] * 3


def test_a_site_that_tells_is_told_that_the_server_trains() -> None:
    made = tables()
    with telling(lambda name, connection: tell(connection, told_of(*made[name]))) as (carrier, errors):
        known = Sites(carrier, {name: [number] for number, name in enumerate(SITES)})
        gone = 0
        while gone < len(SITES):  # told, they end
            gone += isinstance(known._next(None), Gone)
    assert "the server ends without the statistics: it trains, and takes no statistics" in str(errors["anna"])


def asked(outline: Outline, names: list[str], other: dict[str, Any] | None = None) -> Callable[[Message], Message]:
    """What a server asks of a site, with the bundles of some sites."""

    def answer(message: Message) -> Message:
        shown = {name: masks_of(name).bundle.plain() for name in names}
        shown["anna"] = unpack_plain(message)["shown"]
        plain = {"classes": list(outline.classes), "num_classes": outline.num_classes, "names": list(outline.names)}
        return pack(
            {"kind": ASKED, "outline": {**plain, "columns": outline.columns, **(other or {})}, "together": shown}
        )

    return answer


OUTLINE = Outline(["a", "b"], 2, ["x"], 1)
TOLD = Statistics(20, ["a", "b"], [12, 8], ["x"], [20], [3.0], [4.0])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (asked(OUTLINE, ["anna"]), "expected a sum over the sites"),
        (asked(OUTLINE, ["anna", "berlin"]), "expected a sum over the sites"),
        (asked(OUTLINE, ["anna", "berlin", "dover"]), "expected a sum over the sites"),
        (asked(OUTLINE, SITES, {"classes": ["a"], "num_classes": 1}), "to name this site's classes and columns"),
        (asked(OUTLINE, SITES, {"names": ["y"]}), "expected all sites to have the same columns"),
        (lambda message: pack({"kind": "statistics"}), "start it by serve --statistics"),
    ],
)
def test_a_server_that_asks_for_anything_else_gets_nothing(answer: Callable[[Message], Message], told: str) -> None:
    here, there = socket.socketpair()
    server = SocketConnection(here)
    received: list[Message] = []

    def serve() -> None:
        received.append(server.receive() or [])
        server.send(answer(received[0]))
        received.append(server.receive() or [])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises((TrainingError, ConfigurationError), match=told):
        tell_for_sum(SocketConnection(there), TOLD, masks_of("anna"), SITES, silent)
    there.close()
    thread.join(20)
    assert received[1] == []


def test_keys_of_strangers_are_refused() -> None:
    """A server that stands between would make keys of its own in the sites' names."""
    stranger = Authority()
    here, there = socket.socketpair()
    bundles = {name: Masks(name, FIT, stranger.identity(name)).bundle.plain() for name in SITES}
    server = SocketConnection(here)

    def serve() -> None:
        message = server.receive()
        assert message is not None
        bundles["anna"] = unpack_plain(message)["shown"]
        server.send(pack({"kind": ASKED, "outline": unpack_plain(message)["outline"], "together": bundles}))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(TrainingError, match="the public key of berlin is refused: its certificate is not signed by"):
        tell_for_sum(SocketConnection(there), TOLD, masks_of("anna"), SITES, silent)
    thread.join(20)


def test_a_site_that_goes_takes_the_sum_with_it() -> None:
    made = tables()

    def site(name: str, connection: SocketConnection) -> None:
        if name != "cork":
            hidden(made)(name, connection)
            return
        masks = masks_of(name)
        plain = {"classes": ["a", "b"], "num_classes": 2, "names": ["year", "dose", "income"], "columns": 3}
        connection.send(pack({"kind": "outline", "outline": plain, "shown": masks.bundle.plain()}))
        connection.receive()

    with telling(site) as (carrier, errors):
        with pytest.raises(TrainingError, match="cork is gone, and the sum with it"):
            ask_for_sum(carrier, SITES, 5, silent)
        tell_end(carrier, ["anna", "berlin"], "cork is gone")
    assert sorted(errors) == ["anna", "berlin"]  # by this word, or since the server has gone before theirs


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"names": ["y"]}, r"the same columns, got \(\['x'\], 1\) at anna and \(\['y'\], 1\) at berlin"),
        ({"classes": [1, 2]}, "expected all sites to have names of classes of one type"),
        ({"classes": []}, "expected all sites to have names of classes of one type"),
    ],
)
def test_outlines_that_do_not_go_together_are_named(other: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Outline.joined({"anna": OUTLINE, "berlin": replace(OUTLINE, **other)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": "ab"},
        {"classes": ["a", "a"]},
        {"classes": ["a"]},
        {"num_classes": 2**40, "classes": []},
        {"num_classes": True, "classes": []},
        {"columns": -1},
        {"names": ["x\n"]},
    ],
)
def test_what_is_no_outline_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        replace(OUTLINE, **wrong)


def test_a_summand_of_no_examples_is_noticed() -> None:
    """Masks that do not cancel leave noise."""
    with pytest.raises(TrainingError, match="is none of examples"):
        OUTLINE.decode(int.from_bytes(b"\x5a" * OUTLINE.size, "little"), 5)


def test_a_large_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="scale the columns down"):
        OUTLINE.encode(replace(TOLD, sums=[1e200]))


def test_statistics_over_grpc(kits: Path, there: Path) -> None:
    """Three sites of digits, hidden: the mean is that of the pixels of all."""
    dealt = ["--network.dealt", "true", "--network.secure_aggregation", "true"]
    with joined(kits, *RUN, *dealt, "--statistics") as sites:
        served = process(*command_of("serve", kits / "server", *dealt, "--statistics", "statistics.yaml")[1:])
        assert served.returncode == 0, served.stderr
        for site in sites:
            said, _ = site.communicate(timeout=60)
            assert (site.returncode, said.splitlines()[-1]) == (0, "the server has the statistics")
    text = Path("statistics.yaml").read_text()
    digits: Any = Digits(num_clients=3)
    digits.prepare_data()
    digits.setup("fit")
    pixels = np.concatenate([part.numpy().ravel() for client in range(3) for part in digits.raw_inputs(client).parts])
    told = re.search(r"# channel 0: mean (\S+), standard deviation (\S+)", text)
    assert told is not None
    assert f"# all: {len(pixels) // 64} training examples" in text
    assert float(told[1]) == pytest.approx((pixels / 255).mean(), rel=1e-12)
    assert float(told[2]) == pytest.approx((pixels / 255).std(), rel=1e-12)
    message = refused(*command_of("serve", kits / "server", *dealt, "--statistics", "statistics.yaml")[1:])
    assert "expected --statistics to name a new file in a folder that is there, got statistics.yaml" in message


def test_a_dry_run_says_what_would_be_told(kits: Path, there: Path) -> None:
    said = run(*command_of("join", kits / "berlin", "--statistics", "--dry_run")[1:])
    assert said.status == 0
    assert (
        f"berlin would tell {site_kit(kits / 'berlin').address} this, as it stands here, and connects nowhere now:"
        in said.out
    )
    assert "- size: 536" in said.out
    assert "- counts: [null, null, 142, null, null, 102, 132, null, 30, 129]" in said.out
