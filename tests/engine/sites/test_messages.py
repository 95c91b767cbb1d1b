"""What is refused of messages: bytes that are none, values that no client sends, and another machine's text."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fl_lightning import ClientResult, FederatedCallback, LocalRun, Server, TrainingError
from fl_lightning.engine.round import Outgoing
from fl_lightning.engine.sites.facts import Facts, Welcome, pack_told, unpack_welcome
from fl_lightning.engine.sites.messages import (
    Expected,
    Incoming,
    Message,
    one_line,
    pack,
    pack_incoming,
    pack_outgoing,
    pack_tensors,
    unpack,
    unpack_incoming,
    unpack_outgoing,
)

ASKED = Outgoing(4, 2, torch.zeros(3), [torch.zeros(2), None], None, None, {"Keeping": {}})
VECTORS = {"v": torch.tensor([1, 2])}
RESULT = ClientResult(
    4, num_samples=9, num_steps=2, loss=0.5, normalizer=2.0, buffers=[torch.ones(2), None], vectors=VECTORS
)
ANSWER = Incoming(4, 2, RESULT, torch.ones(3))


class Keeping(FederatedCallback):
    """Sends two whole numbers."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None: ...

    def sends(self, orchestrator: Server) -> dict[str, torch.Tensor]:
        return {"v": torch.tensor([0, 0])}


def expected() -> Expected:
    """What a server expects that has a model of 3 numbers, two buffers, one of them None, and one rule."""
    trainer = SimpleNamespace(callbacks=[Keeping()], callback_metrics={})
    buffers = {"buffer_names": ["one", "none"], "read_buffers": lambda: ASKED.buffers}
    return Expected(SimpleNamespace(trainer=trainer, params=ASKED.params, client=nn.Identity(), **buffers))


def answered(**values: Any) -> Incoming:
    """Send an answer with other values, and take it in."""
    got = unpack_incoming(pack_incoming(replace(ANSWER, result=replace(RESULT, **values))))
    expected().check_incoming(got, ASKED)
    return got


def test_there_and_back() -> None:
    values: dict[str, Any] = {
        "loss": float("nan"),
        "metrics": {"a": 1.0, "b": float("nan")},
        "reductions": {"a": "sum"},
        "shown": {"a": {"prog_bar": True}},
        "upload_bytes": 7,
        "stays": {("Keeping", "kept/model"): torch.tensor(2)},
    }
    got = answered(**values).result
    assert got is not None
    assert (str(got.loss), str(got.metrics), got.shown) == ("nan", "{'a': 1.0, 'b': nan}", {"a": {"prog_bar": True}})
    assert got.vectors["v"].tolist() == [1, 2]
    assert got.stays["Keeping", "kept/model"] == 2
    assert [None if value is None else value.tolist() for value in got.buffers] == [[1, 1], None]


def test_a_rounds_parameters_are_packed_once() -> None:
    """The message of each site holds the same bytes, and tensors that share memory are sent twice."""
    params = pack_tensors({"params": ASKED.params})
    shared = replace(ASKED, states={"Keeping": {"a": ASKED.params, "b": ASKED.params}})
    message = pack_outgoing(shared, params)
    assert message[2] is params
    got = unpack_outgoing(message).states["Keeping"]
    assert [value.tolist() for value in got.values()] == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    "values",
    [
        {"num_samples": -1},
        {"num_samples": 10**30},
        {"num_samples": True},
        {"num_steps": 1.5},
        {"loss": "low"},
        {"normalizer": float("nan")},
        {"normalizer": -1.0},
        {"learning_rate": float("inf")},
        {"metrics": {"a": "x"}},
        {"metrics": {f"{number}": 1.0 for number in range(2000)}},
        {"reductions": {"a": "backward"}},
        {"shown": {"a": 1}},
        {"loss_scale": (1.0, 2)},  # the run has no GradScaler
        {"upload_bytes": -1},
        {"buffers": [torch.ones(2)]},
        {"buffers": [None, None]},
        {"buffers": [torch.ones(2), torch.ones(2)]},
        {"vectors": {}},
        {"vectors": {"v": torch.tensor([1.0, torch.nan])}},
        {"vectors": {"v": torch.tensor([1, 2, 3])}},
        {"vectors": {**VECTORS, "w": torch.tensor(1)}},
        {"stays": {("Keeping", "model"): torch.tensor(2)}},
        {"stays": {("Keeping", "kept/model"): torch.ones(3)}},
        {"stays": {("Nobody", "kept/model"): torch.tensor(2)}},
    ],
)
def test_values_that_no_client_sends_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match="expected"):
        answered(**values)


def unknown_dtype() -> Message:
    head = json.dumps({"model": {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return [b"{}", len(head).to_bytes(8, "little") + head + bytes(4)]


@pytest.mark.parametrize(
    "message",
    [[], [b""], [b"\xff" * 9], [b"[]"], [b"[" * 1_000_000], [b"1" * 6000], [b"{}", b"\xff"], unknown_dtype()],
)
def test_bytes_that_are_no_message_are_refused(message: Message) -> None:
    with pytest.raises(TrainingError, match=r"expected a message (of JSON|that begins)"):
        unpack(message)


@pytest.mark.parametrize(
    "head",
    [
        {"client": [4]},
        {"number": "2"},
        {"result": None},
        {"result": {"nonsense": 1}},
        {"buffers": 10**10},
        {"buffers": [True, True]},
        {"stays": [["Keeping", "kept/model"]]},
        {"result": {**json.loads(json.dumps(vars(RESULT), default=str)), "loss_scale": [1.0, 2, 3]}},
    ],
)
def test_a_head_that_is_none_of_an_answer_is_refused(head: dict[str, Any]) -> None:
    plain, tensors = unpack(pack_incoming(ANSWER))
    with pytest.raises(TrainingError, match="expected an answer for a client"):
        unpack_incoming(pack(plain | head, pack_tensors(tensors)))


@pytest.mark.parametrize(
    "head", [{"client": None}, {"states": 3}, {"buffers": 10**10}, {"loss_scale": 1}, {"loss_scale": ["a", 2]}]
)
def test_a_site_refuses_what_is_no_model(head: dict[str, Any]) -> None:
    plain, tensors = unpack(pack_outgoing(ASKED, pack_tensors({"params": ASKED.params})))
    assert unpack_outgoing(pack(plain, pack_tensors(tensors))).client == 4
    with pytest.raises(TrainingError, match="expected a model for a client"):
        unpack_outgoing(pack(plain | head, pack_tensors(tensors)))


def test_another_machines_text_is_one_line_that_a_terminal_may_show() -> None:
    assert one_line("a\n \x1b[2J b") == "a \\x1b[2J b"
    assert len(one_line("x" * 10_000)) < 1000
    told = unpack_incoming(pack_incoming(Incoming(4, 2, reason="first\nsecond")))
    assert told.reason == "first second"


@pytest.mark.parametrize(
    "wrong", [{"size": "9"}, {"size": -1}, {"class_counts": "12"}, {"class_counts": [0.5]}, {"fingerprint": None}]
)
def test_facts_that_are_no_counts_are_refused(wrong: dict[str, Any]) -> None:
    facts = Facts(0, 9, [4, 5], class_names=["a", "b"], scaling=None, fingerprint="f")
    assert unpack_welcome(pack_told(Welcome("anna", [facts], {}))).facts == [facts]
    with pytest.raises(TrainingError, match="expected the welcome of a site"):
        unpack_welcome(pack_told(Welcome("anna", [replace(facts, **wrong)], {})))
