"""Messages between a server and its sites: JSON and safetensors, never pickles."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.round import Outgoing
from fl_lightning.engine.rules.callback import CLIENT_HOOKS, SENT_HOOKS, federated, overrides
from fl_lightning.engine.sites.events import Message
from fl_lightning.engine.states.sent import MARK, has_shape, is_sent
from fl_lightning.engine.updates.cohort import ClientResult
from fl_lightning.errors import LARGEST as LARGEST_FLOAT
from fl_lightning.errors import SMALLEST, ConfigurationError, TrainingError

REASON = 500  # largest number of characters of a reason
NONE, SENT, SAME = range(3)  # what a message has of a buffer: nothing, its value, or that the receiver has its value
LARGEST = 2**53  # largest whole number of a client's values
NAME = 100  # largest number of characters of a metric's name
NAMES = 1000  # largest number of names of metrics, and of what stays, that a client has in a run
RATE = 1000  # largest factor on a learning rate
BATCHES = 10**6  # largest number of batches that a normalization counts in a client's round
TENSORS = ("buffers", "vectors", "stays")  # attributes of a ClientResult that are not plain
# Metrics that the server logs itself, whatever the rules and the module are.
OWN = (
    *("round", "val/*", "test/*", "left_out/*", "clients/selected", "clients/arrived", "clients/dropped"),
    *("clients/late", "clients/quarantined", "clients/state_bytes"),
)
# Layers with running_var and num_batches_tracked: exactly these, as a subclass may use the names for something else.
NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)

"""A head of JSON, and any number of bodies of safetensors, which carriers carry as they lie."""


@dataclass(frozen=True)
class Incoming:
    """Holds what a site sends back for one client of a round.

    Attributes:
        client: the client's id.
        number: the round's number.
        result: the values that the client sends beside its model; None for a client that is left out.
        model: (P,) the client's model, or its update; None for a client that is left out.
        less: whether ``model`` is an update.
        reason: why the client is left out; empty for one that is not.
        told: the values in the open beside a ``model`` of hidden words; None where ``model`` is a model or an update.
    """

    client: int
    number: int
    result: ClientResult | None = None
    model: Tensor | None = None
    less: bool = False
    reason: str = ""
    told: Mapping[str, Any] | None = None


def pack(plain: Mapping[str, Any], *bodies: bytes) -> Message:
    """Write plain values as the head of a message, before its bodies."""
    return [json.dumps(plain).encode(), *bodies]


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Write tensors, which may lie on any device, as one body."""
    plain: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        plain[name] = value.clone() if place in memory else value  # safetensors refuses those that share memory
        memory.add(place)
    return save(plain)


def unpack(message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the plain values and all tensors of a message.

    Raises:
        TrainingError: the bytes are no message.
    """
    plain = unpack_plain(message)
    tensors: dict[str, Tensor] = {}
    for body in message[1:]:
        try:
            tensors |= load(body)
        except (ValueError, KeyError, SafetensorError) as error:
            raise _no_message(message) from error
    return plain, tensors


def unpack_plain(message: Message) -> dict[str, Any]:
    """Read the plain values of a message alone.

    Raises:
        TrainingError: the bytes are no message.
    """
    try:
        plain = json.loads(message[0])
    except (ValueError, LookupError, RecursionError) as error:
        raise _no_message(message) from error
    if not isinstance(plain, dict):
        raise TrainingError(f"expected a message that begins with a JSON object, got {type(plain).__name__}")
    return plain


def _no_message(message: Message) -> TrainingError:
    return TrainingError(f"expected a message of JSON and safetensors, got {sum(map(len, message))} other bytes")


def pack_outgoing(outgoing: Outgoing, params: bytes, known: Buffers = ()) -> Message:
    """Write what goes out to a client, without the buffers that are ``known`` to its site by the last message.

    Args:
        outgoing: the model and the rules' tensors for the client.
        params: ``pack_tensors({"params": outgoing.params})``, which is the same for all clients that start alike.
        known: the buffers that the site has been sent last.
    """
    marks = _marks(outgoing.buffers, known)
    tensors = _marked(outgoing.buffers, marks)
    keys = list(outgoing.states)
    for number, key in enumerate(keys):
        tensors |= {f"states/{number}/{name}": value for name, value in outgoing.states[key].items()}
    plain = {name: getattr(outgoing, name) for name in ("client", "number", "factors", "loss_scale", "together")}
    return pack({**plain, "states": keys, "buffers": marks}, pack_tensors(tensors), params)


def unpack_outgoing(message: Message, known: Buffers = ()) -> Outgoing:
    """Read what goes out to a client, and the rest from the ``known`` buffers of the last message.

    Raises:
        TrainingError: the message is another one.
    """
    plain, tensors = unpack(message)
    try:
        return _outgoing(plain, tensors, known)
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"expected a model for a client, got another message ({_error_line(error)})") from error


def _outgoing(plain: Mapping[str, Any], tensors: Mapping[str, Tensor], known: Buffers) -> Outgoing:
    states: dict[str, dict[str, Tensor]] = {}
    for number, key in enumerate(plain["states"]):
        states[key] = _named(f"states/{number}/", tensors)
    client, number = _numbers(plain)
    return Outgoing(
        client=client,
        number=number,
        params=tensors["params"],
        buffers=_filled(plain["buffers"], tensors, known),
        factors=plain["factors"],
        loss_scale=_loss_scale(plain["loss_scale"]),
        states=states,
        together=dict(plain["together"]),
    )


def pack_incoming(incoming: Incoming, known: Buffers = ()) -> Message:
    """Write what comes back for a client, without the buffers that are ``known`` to the server, which has sent them."""
    plain = {name: getattr(incoming, name) for name in ("client", "number", "less", "reason")}
    result = incoming.result
    if incoming.told is not None and incoming.model is not None:
        return pack({**plain, "told": incoming.told}, pack_tensors({"model": incoming.model}))
    if result is None or incoming.model is None:
        return pack(plain)
    plain["result"] = {own.name: getattr(result, own.name) for own in fields(result) if own.name not in TENSORS}
    marks = _marks(result.buffers, known)
    plain["buffers"] = marks
    plain["stays"] = list(result.stays)
    tensors = {"model": incoming.model, **_marked(result.buffers, marks)}
    tensors |= {f"vectors/{name}": value for name, value in result.vectors.items()}
    tensors |= {f"stays/{number}": value for number, value in enumerate(result.stays.values())}
    return pack(plain, pack_tensors(tensors))


def unpack_incoming(message: Message, known: Callable[[int], Buffers] = lambda client: ()) -> Incoming:
    """Read what comes back for a client.

    Args:
        message: the message.
        known: returns the buffers that have been sent to a client.

    Raises:
        TrainingError: the message is another one.
    """
    plain, tensors = unpack(message)
    try:
        return _incoming(plain, tensors, known)
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"expected an answer for a client, got another message ({_error_line(error)})") from error


def _incoming(plain: Mapping[str, Any], tensors: Mapping[str, Tensor], known: Callable[[int], Buffers]) -> Incoming:
    client, number = _numbers(plain)
    if "told" in plain:
        return Incoming(client, number, model=tensors["model"], told=dict(plain["told"]))
    if "result" not in plain:
        return Incoming(client, number, reason=one_line(plain["reason"]))
    result = replace(
        ClientResult(**plain["result"]),
        loss_scale=_loss_scale(plain["result"]["loss_scale"]),
        buffers=list(_filled(plain["buffers"], tensors, known(client))),
        vectors=_named("vectors/", tensors),
        stays={(key, name): tensors[f"stays/{number}"] for number, (key, name) in enumerate(plain["stays"])},
    )
    return Incoming(client, number, result, tensors["model"], plain["less"] is True)


def _numbers(plain: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of a message's client and round."""
    client, number = plain["client"], plain["number"]
    if not is_count(client) or not is_count(number):
        raise TypeError(f"client {client!r} of round {number!r}")
    return client, number


def _loss_scale(given: Any) -> tuple[float, int] | None:
    """Return the scale and the growth tracker of a GradScaler, if there is one."""
    if given is None:
        return None
    scale, tracker = given
    if not is_size(scale) or not SMALLEST <= scale < LARGEST_FLOAT or not is_count(tracker) or tracker >= 2**31:
        raise TypeError(f"a loss scale of {scale!r}, {tracker!r}")
    return scale, tracker


def _error_line(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")


def one_line(text: object) -> str:
    """Return the text of another machine as one line of printable characters, which a terminal may show."""
    words = " ".join(str(text).split())
    printable = "".join(map(_printable, words[: REASON + 1]))
    return printable if len(printable) <= REASON else f"{printable[:REASON]}…"


def _printable(letter: str) -> str:
    return letter if letter.isprintable() else ascii(letter)[1:-1]


def _marks(values: Buffers, known: Buffers) -> list[int]:
    """Tell of each buffer what a message has of it, for a receiver that knows others."""
    marks: list[int] = []
    for place, value in enumerate(values):
        other = known[place] if place < len(known) else None
        if value is None:
            marks.append(NONE)
        elif other is not None and _is_same(value, other):
            marks.append(SAME)
        else:
            marks.append(SENT)
    return marks


def _is_same(value: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors have the same bits."""
    if value is other:
        return True
    if value.dtype != other.dtype or value.shape != other.shape:
        return False
    rows = [tensor.detach().cpu().reshape(-1).view(torch.uint8) for tensor in (value, other)]
    return torch.equal(*rows)


def _marked(values: Buffers, marks: Sequence[int]) -> dict[str, Tensor]:
    marked: dict[str, Tensor] = {}
    for place, (value, mark) in enumerate(zip(values, marks, strict=True)):
        if value is not None and mark == SENT:
            marked[f"buffers/{place}"] = value
    return marked


def _filled(marks: Sequence[int], tensors: Mapping[str, Tensor], known: Buffers) -> Buffers:
    """Return the buffers of a message, with those that the receiver knows."""
    filled: list[Tensor | None] = []
    for place, mark in enumerate(marks):
        if mark == SENT:
            filled.append(tensors[f"buffers/{place}"])
        elif mark == NONE:
            filled.append(None)
        elif mark == SAME and place < len(known):
            filled.append(known[place])
        else:
            raise ValueError(f"buffer {place}, which has not been sent")
    return filled


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def is_count(value: Any) -> bool:
    """Tell whether a value of a message is a whole number from 0 on."""
    return type(value) is int and 0 <= value <= LARGEST


def is_number(value: Any) -> bool:
    """Tell whether a value of a message is a number, which may be infinite or nan."""
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST)


def is_size(value: Any) -> bool:
    """Tell whether a value of a message is a finite number from 0 on."""
    return is_number(value) and math.isfinite(value) and value >= 0


def _are(fits: Callable[[Any], bool], values: Any) -> bool:
    return isinstance(values, dict) and len(values) <= NAMES and all(map(fits, values.values()))


# What a client's values are, by their names: the words for them, and how to tell.
FIT: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "num_samples": ("a number of examples", is_count),
    "num_steps": ("a number of steps", is_count),
    "loss": ("a number", is_number),
    "normalizer": ("a number from 0 on", is_size),
    "learning_rate": ("a number from 0 on", is_size),
    "upload_bytes": ("a number of bytes or nothing", lambda value: value is None or is_count(value)),
    "metrics": (f"{NAMES:,} numbers by name at most", lambda values: _are(is_number, values)),
    "reductions": ("sum, min or max by name", lambda values: _are(lambda way: way in ("sum", "min", "max"), values)),
    "shown": (
        "True or False for prog_bar and logger of a metric",
        lambda values: _are(
            lambda ways: _are(lambda way: type(way) is bool, ways) and {*ways} <= {"prog_bar", "logger"}, values
        ),
    ),
}


def expect(fits: bool, words: str, got: object) -> None:
    """Refuse a part of a message that does not fit.

    Args:
        fits: whether the part fits.
        words: names the expected value.
        got: the value of the peer.

    Raises:
        TrainingError: the part does not fit.
    """
    if not fits:
        raise TrainingError(f"expected {words}, got {one_line(got)}")


class Expected:
    """Checks messages by what this machine's own module and rules would send and take.

    Args:
        server: the orchestrator, when a fit has begun.
    """

    def __init__(self, server: Any) -> None:
        self._server = server
        self._rules = {rule.state_key: rule for rule in federated(server.trainer)}
        self._buffer_forms = dict(zip(server.buffer_names, map(form_of, server.read_buffers()), strict=True))
        self._norms = {path for path, part in server.client.named_modules() if type(part) in NORMS}
        self._known: dict[int, set[str]] = defaultdict(set)  # the names that each client has sent
        self._sent: set[str] = {*server.trainer.callback_metrics}  # names of metrics that may have come from clients
        self._acting: set[str] = set()  # the rules with hooks where clients train, which alone log and keep there
        for key, rule in self._rules.items():
            if any(overrides(rule, hook) for hook in (*CLIENT_HOOKS, *SENT_HOOKS)):
                self._acting.add(key)
        self._own = [*OWN]  # patterns of metrics that no client sends
        for callback in server.trainer.callbacks:
            if callback.state_key not in self._acting:
                self._own += [re.sub("<.*>", "*", metric.name) for metric in getattr(callback, "metrics", ())]

    def check_outgoing(self, asked: Outgoing) -> None:
        """Refuse what a server would not send to a site of this module and these rules.

        Raises:
            TrainingError: a tensor has another shape, dtype or name, or is not finite, or a number is out of range.
        """
        self._check_model(asked.params, asked.buffers)
        expect(bool(asked.params.isfinite().all()), "a finite model", "infinite or nan parameters")
        scaler = getattr(self._server.trainer.precision_plugin, "scaler", None)
        expect((asked.loss_scale is None) == (scaler is None), "a loss scale for a GradScaler alone", asked.loss_scale)
        groups = [len(settings) for _, settings in self._server.made_optimizers()["client"]]
        words = f"factors from 0 to {RATE:,} on the learning rates of {groups} parameter groups"
        expect(asked.factors is None or _are_factors(asked.factors, groups), words, asked.factors)
        for key, state in asked.states.items():
            for name, value in state.items():
                fits = key in self._rules and is_sent(name, self._rules[key].broadcasts, asked.client)
                is_whole = not name.startswith(MARK) or form_of(value) == ROUND
                expect(fits and is_whole, "what this site's rules receive", f"{name} of {key}")

    def check_leaving(self, answer: Incoming) -> None:
        """Refuse to send buffers that training has filled, or given another size: they may hold examples.

        Raises:
            ConfigurationError: a buffer has another form than when the fit began.
        """
        if answer.model is None or answer.result is None:
            return
        try:
            self._check_model(answer.model, answer.result.buffers)
        except TrainingError as error:
            advice = "give the buffer its size when the module is made, or keep it here by LocalPart"
            raise ConfigurationError(f"{error}: what training puts there would leave this site; {advice}") from None

    def check_incoming(self, incoming: Incoming, asked: Outgoing) -> None:
        """Refuse an answer that does not fit what was asked.

        Raises:
            TrainingError: the values are another client's, or none that a client sends, or a tensor has another name,
                shape or dtype, or numbers that no training makes.
        """
        result = incoming.result
        if incoming.model is None or result is None:
            return
        expect(result.client == asked.client, f"values of client {asked.client}", f"those of client {result.client}")
        for name, (words, fits) in FIT.items():
            value = getattr(result, name)
            expect(fits(value), f"{name} to be {words}", repr(value)[:REASON])
        expect((result.loss_scale is None) == (asked.loss_scale is None), "a loss scale if asked", result.loss_scale)
        self._check_model(incoming.model, result.buffers)
        for name, old, new in zip(self._buffer_forms, asked.buffers, result.buffers, strict=True):
            layer, _, kind = name.rpartition(".")
            if layer in self._norms and old is not None and new is not None:
                if kind == "running_var":
                    expect(not (new < 0).any(), f"variances from 0 on in the buffer {name}", "others")
                if kind == "num_batches_tracked":
                    fits_round = 0 <= int(new) <= int(old) + BATCHES
                    expect(fits_round, f"{name} to count {BATCHES:,} batches more at most", int(new))
        self._check_vectors(result.vectors)
        self.check_names(result)

    def _check_model(self, params: Tensor, buffers: Buffers) -> None:
        """Refuse a model (P,) with buffers that has another form than this machine's."""
        form = form_of(self._server.params)
        expect(form_of(params) == form, f"the model to be {form}", form_of(params))
        expect(len(buffers) == len(self._buffer_forms), f"{len(self._buffer_forms)} buffers", len(buffers))
        for (name, form), value in zip(self._buffer_forms.items(), buffers, strict=True):
            expect(form_of(value) == form, f"the buffer {name} to be {form}", form_of(value))

    def _check_vectors(self, vectors: Mapping[str, Tensor]) -> None:
        """Refuse other vectors than those that this machine's rules say that clients send."""
        forms: dict[str, Tensor] = {}
        for rule in self._rules.values():
            forms |= rule.sends(self._server)
        for name in vectors:
            expect(name in forms, "vectors that a rule names in its method sends", name)
        for name, form in forms.items():
            vector = vectors.get(name)
            fits = vector is not None and vector.dtype == form.dtype and has_shape(vector, form.shape)
            expect(fits, f"the vector {name} to be {form_of(form)}", form_of(vector))
            expect(vector is None or bool(vector.isfinite().all()), f"finite numbers in the vector {name}", "others")

    def check_names(self, result: ClientResult) -> None:
        """Refuse names that are no names, or the server's own, or that grow in number from round to round."""
        words = f"names of metrics that begin with a letter or digit, of {NAME} printable characters at most"
        own = [
            *self._own,
            *({*self._server.trainer.callback_metrics} - self._sent),
        ]  # these the server has logged first
        for name in result.metrics:
            expect(name.isprintable() and name[:1].isalnum() and len(name) <= NAME, words, repr(name[:NAME]))
            is_own = any(fnmatchcase(name, pattern) for pattern in own)
            expect(not is_own, "metrics of clients", f"{name}, which the server logs itself")
        for name in (*result.reductions, *result.shown):
            expect(name in result.metrics, "words about metrics that are sent", name)
        for (key, name), mark in result.stays.items():
            fits = name.startswith(MARK) and one_line(name) == name and form_of(mark) == ROUND
            expect(key in self._acting and fits, "marks of what the rules keep at the site", f"{name} of {key}")
        known = {*self._known[result.client], *result.metrics, *map(str, result.stays)}
        expect(len(known) <= NAMES, f"{NAMES:,} names in a run at most, of metrics and of what stays", len(known))
        self._known[result.client] = known
        self._sent |= {*result.metrics}


def _are_factors(factors: Any, groups: Sequence[int]) -> bool:
    """Tell whether there is a factor in range for each parameter group of each optimizer."""
    try:
        sizes = [len(own) for own in factors]
        return sizes == groups and all(is_size(factor) and factor <= RATE for factor in chain(*factors))
    except TypeError:
        return False


def form_of(value: Tensor | None) -> str:
    """Return dtype and shape of a tensor."""
    return "nothing" if value is None else f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


ROUND = form_of(torch.tensor(0))  # of a mark: the round of a value that stays at a site
