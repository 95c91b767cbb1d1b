"""Messages between a server and its sites: JSON and safetensors, never pickles, checked before use."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.round import Outgoing
from fl_lightning.engine.sites.events import Message
from fl_lightning.engine.states.sent import MARK
from fl_lightning.engine.updates.cohort import ClientResult
from fl_lightning.errors import TrainingError

REASON = 500  # largest number of characters of a reason
METRICS = 1000  # largest number of metrics of a client
NONE, SENT, SAME = range(3)  # what a message has of a buffer: nothing, its value, or that the receiver has its value
LARGEST = 2**53  # largest whole number of a client's values
TENSORS = ("buffers", "vectors", "stays")  # attributes of a ClientResult that are not plain


@dataclass(frozen=True)
class Incoming:
    """Holds what a site sends back for one client of a round.

    Attributes:
        client: the client's id.
        number: the round's number.
        result: the values that the client sends beside its model; None for a client that is left out.
        model: (P,) the client's model, or its update; None for a client that is left out.
        less: whether ``model`` is an update.
        reason: why the client is left out; empty if it is not.
        told: what is told in the open where ``model`` has the words of a sum; None where it is a model or an update.
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
    """Write tensors, which may lie on any device, as a body."""
    return save({name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()})


def unpack(message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a message of :func:`pack`.

    Raises:
        TrainingError: the bytes are no such message.
    """
    plain = unpack_plain(message)
    tensors: dict[str, Tensor] = {}
    try:
        for body in message[1:]:
            tensors |= load(body)
    except (ValueError, KeyError, SafetensorError) as error:
        raise _no_message(message) from error
    return plain, tensors


def unpack_plain(message: Message) -> dict[str, Any]:
    """Read the plain values of a message of :func:`pack` alone.

    Raises:
        TrainingError: the bytes are no such message.
    """
    try:
        plain = json.loads(message[0])
    except (ValueError, RecursionError, IndexError) as error:
        raise _no_message(message) from error
    if not isinstance(plain, dict):
        raise TrainingError(f"expected a message that begins with a JSON object, got {type(plain).__name__}")
    return plain


def _no_message(message: Message) -> TrainingError:
    return TrainingError(f"expected a message of JSON and safetensors, got {sum(map(len, message))} other bytes")


def pack_outgoing(outgoing: Outgoing, params: bytes, known: Buffers = ()) -> Message:
    """Write what goes out to a client, without the buffers that are ``known`` to its site by the last message.

    Args:
        outgoing: what goes out.
        params: its parameters as a body, which clients that start from the same model share.
        known: the buffers that the site was sent last.
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
        raise TrainingError(f"expected a model for a client, got another message ({_named_error(error)})") from error


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
    tensors |= _numbered("stays", list(result.stays.values()))
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
        raise TrainingError(f"expected an answer for a client, got another message ({_named_error(error)})") from error


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
        vectors={
            name.removeprefix("vectors/"): value for name, value in tensors.items() if name.startswith("vectors/")
        },
        stays={(key, name): tensors[f"stays/{number}"] for number, (key, name) in enumerate(plain["stays"])},
    )
    return Incoming(client, number, result, tensors["model"], plain["less"] is True)


def _numbers(plain: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of a message's client and round."""
    client, number = plain["client"], plain["number"]
    if type(client) is not int or type(number) is not int:
        raise TypeError(f"client {client!r} of round {number!r}")
    return client, number


def _loss_scale(given: Any) -> tuple[float, int] | None:
    """Return the scale and the growth tracker of a GradScaler, if there is one."""
    if given is None:
        return None
    scale, tracker = given
    if not _is_size(scale) or not _is_count(tracker):
        raise TypeError(f"a loss scale of {scale!r}, {tracker!r}")
    return scale, tracker


def _named_error(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")


def named_error(error: Exception) -> str:
    """Name the type of an error, and the class whose method has raised it; its text stays where it was raised."""
    return type(error).__name__


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


def _numbered(name: str, values: Buffers) -> dict[str, Tensor]:
    return {f"{name}/{number}": value for number, value in enumerate(values) if value is not None}


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def check_incoming(incoming: Incoming, asked: Outgoing) -> Incoming:
    """Refuse an answer that does not fit what was asked.

    Raises:
        TrainingError: the values are another client's, or none that a client sends, or a tensor has another shape or
            dtype, or numbers that are not finite.
    """
    if incoming.model is None or incoming.result is None:
        return incoming
    if incoming.result.client != asked.client:
        raise TrainingError(f"expected values of client {asked.client}, got those of client {incoming.result.client}")
    for name, (words, fits) in FIT.items():
        value = getattr(incoming.result, name)
        if not fits(value):
            raise TrainingError(f"expected {name} to be {words}, got {one_line(repr(value)[:REASON])}")
    if (incoming.result.loss_scale is None) != (asked.loss_scale is None):
        raise TrainingError("expected a loss scale from clients of a run with a GradScaler, and from no others")
    if len(incoming.result.buffers) != len(asked.buffers):
        raise TrainingError(f"expected {len(asked.buffers)} buffers, got {len(incoming.result.buffers)}")
    check_forms(asked.params, asked.buffers, incoming.model, incoming.result.buffers)
    for (rule, name), mark in incoming.result.stays.items():
        if rule not in asked.states or not name.startswith(MARK) or mark.shape or mark.dtype != torch.int64:
            raise TrainingError(f"expected marks of what stays at the site, got {one_line(f'{name} of {rule}')}")
    for name, vector in incoming.result.vectors.items():
        if not vector.isfinite().all():
            raise TrainingError(f"expected finite numbers, got others in the vector {one_line(name)}")
    return incoming


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST)


def _is_size(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0


def _are(fits: Callable[[Any], bool], values: Any) -> bool:
    return isinstance(values, dict) and len(values) <= METRICS and all(map(fits, values.values()))


# What a client's values are, by their names: the words for them, and how to tell.
FIT: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "num_samples": ("a number of examples", _is_count),
    "num_steps": ("a number of steps", _is_count),
    "loss": ("a number", _is_number),
    "normalizer": ("a number from 0 on", _is_size),
    "learning_rate": ("a number from 0 on", _is_size),
    "upload_bytes": ("a number of bytes or nothing", lambda value: value is None or _is_count(value)),
    "metrics": (f"{METRICS:,} numbers by name at most", lambda values: _are(_is_number, values)),
    "reductions": ("sum, min or max by name", lambda values: _are(lambda way: way in ("sum", "min", "max"), values)),
    "shown": (
        "True or False by name for each metric",
        lambda values: _are(lambda ways: _are(lambda way: type(way) is bool, ways), values),
    ),
}


def check_forms(params: Tensor, buffers: Buffers, got_params: Tensor, got_buffers: Buffers) -> None:
    """Refuse a model that has another form than a model (P,) with buffers.

    Raises:
        TrainingError: a tensor has another shape or dtype.
    """
    expected = {"model": params, **_numbered("buffer", buffers)}
    got = {"model": got_params, **_numbered("buffer", got_buffers)}
    for name, value in expected.items():
        form = _form(value)
        is_open = name != "model" and not value.numel()  # training may fill an empty buffer
        if not is_open and (name not in got or _form(got[name]) != form):
            raise TrainingError(f"expected {name} to be {form}, got {_form(got[name]) if name in got else 'nothing'}")


def _form(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
