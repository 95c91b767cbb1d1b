"""Messages between a server and its sites: JSON and safetensors, never pickles, checked before use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.round import Outgoing
from fl_lightning.engine.updates.cohort import ClientResult
from fl_lightning.errors import TrainingError

LENGTH = 8  # bytes of the number that says how long the JSON is
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
        reason: why the client is left out, or why the run ends; empty for neither.
        ends: whether the reason ends the run.
    """

    client: int
    number: int
    result: ClientResult | None = None
    model: Tensor | None = None
    less: bool = False
    reason: str = ""
    ends: bool = False


def pack(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Write plain values and tensors, which may lie on any device, as one message."""
    head = json.dumps(plain).encode()
    body = save({name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()})
    return len(head).to_bytes(LENGTH, "big") + head + body


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a message of :func:`pack`.

    Raises:
        TrainingError: the bytes are no such message.
    """
    end = LENGTH + int.from_bytes(message[:LENGTH], "big")
    try:
        head = json.loads(message[LENGTH:end])
        tensors = load(message[end:])
    except (ValueError, SafetensorError) as error:
        raise TrainingError(f"expected a message of JSON and safetensors, got {len(message)} other bytes") from error
    if not isinstance(head, dict):
        raise TrainingError(f"expected a message that begins with a JSON object, got {type(head).__name__}")
    return head, tensors


def pack_outgoing(outgoing: Outgoing) -> bytes:
    """Write what goes out to a client."""
    tensors = {"params": outgoing.params, **_numbered("buffers", outgoing.buffers)}
    keys = list(outgoing.states)
    for number, key in enumerate(keys):
        tensors |= {f"states/{number}/{name}": value for name, value in outgoing.states[key].items()}
    plain = {name: getattr(outgoing, name) for name in ("client", "number", "factors", "loss_scale")}
    return pack({**plain, "states": keys, "buffers": len(outgoing.buffers)}, tensors)


def unpack_outgoing(message: bytes) -> Outgoing:
    """Read what goes out to a client."""
    plain, tensors = unpack(message)
    states: dict[str, dict[str, Tensor]] = {}
    for number, key in enumerate(plain["states"]):
        states[key] = _named(f"states/{number}/", tensors)
    return Outgoing(
        client=plain["client"],
        number=plain["number"],
        params=tensors["params"],
        buffers=_from_numbered("buffers", plain["buffers"], tensors),
        factors=plain["factors"],
        loss_scale=None if plain["loss_scale"] is None else tuple(plain["loss_scale"]),
        states=states,
    )


def pack_incoming(incoming: Incoming) -> bytes:
    """Write what comes back for a client."""
    plain = {name: getattr(incoming, name) for name in ("client", "number", "less", "reason", "ends")}
    result = incoming.result
    if result is None or incoming.model is None:
        return pack(plain, {})
    plain["result"] = {own.name: getattr(result, own.name) for own in fields(result) if own.name not in TENSORS}
    plain["buffers"] = len(result.buffers)
    plain["stays"] = list(result.stays)
    tensors = {"model": incoming.model, **_numbered("buffers", result.buffers)}
    tensors |= {f"vectors/{name}": value for name, value in result.vectors.items()}
    tensors |= _numbered("stays", list(result.stays.values()))
    return pack(plain, tensors)


def unpack_incoming(message: bytes) -> Incoming:
    """Read what comes back for a client.

    Raises:
        TrainingError: the message is another one.
    """
    plain, tensors = unpack(message)
    try:
        return _incoming(plain, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"expected an answer for a client, got a message without {error}") from error


def _incoming(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Incoming:
    if "result" not in plain:
        return Incoming(plain["client"], plain["number"], reason=plain["reason"], ends=plain["ends"])
    scale = plain["result"]["loss_scale"]
    result = replace(
        ClientResult(**plain["result"]),
        loss_scale=None if scale is None else tuple(scale),
        buffers=list(_from_numbered("buffers", plain["buffers"], tensors)),
        vectors={
            name.removeprefix("vectors/"): value for name, value in tensors.items() if name.startswith("vectors/")
        },
        stays={(key, name): tensors[f"stays/{number}"] for number, (key, name) in enumerate(plain["stays"])},
    )
    return Incoming(plain["client"], plain["number"], result, tensors["model"], plain["less"])


def _numbered(name: str, values: Buffers) -> dict[str, Tensor]:
    return {f"{name}/{number}": value for number, value in enumerate(values) if value is not None}


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _from_numbered(name: str, count: int, tensors: Mapping[str, Tensor]) -> Buffers:
    return [tensors.get(f"{name}/{number}") for number in range(count)]


def check_incoming(incoming: Incoming, asked: Outgoing) -> Incoming:
    """Refuse an answer that does not fit what was asked.

    Raises:
        TrainingError: the values are another client's, or a tensor has another shape or dtype.
    """
    if incoming.model is None or incoming.result is None:
        return incoming
    if incoming.result.client != asked.client:
        raise TrainingError(f"expected values of client {asked.client}, got those of client {incoming.result.client}")
    check_forms(asked.params, asked.buffers, incoming.model, incoming.result.buffers)
    return incoming


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
