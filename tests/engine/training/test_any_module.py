"""Any LightningModule, unmodified: every row of the table (zoo/table.py) ends in the same bits, however it is run.

Alone: one client against ``Trainer.fit``, for every row. Federated, four clients for two rounds of two epochs, for rows
with every pair of traits (covering.py), and, as slow tests, for all: a stop after round 1, in which clients trained
in another order and all in one batch; two devices, which are real processes over gloo, by day for rows with every
trait; a client that raises in the middle of its training, against a run without that client.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.covering import every
from lib.toy import Net
from lib.two_devices import asked_of, on_two_devices
from lightning.pytorch import LightningModule
from torch import nn
from zoo.networks import SpectralNorm
from zoo.runs import (
    Ends,
    alone,
    as_client,
    differences,
    ends_where_the_trainer_does,
    failing,
    federated,
    in_order,
    state_of,
)
from zoo.table import COVER, COVER_ONCE, ROWS, Row

from fl_lightning import ConfigurationError

EVERY_ROW = every(ROWS, COVER)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_client_ends_where_the_trainer_does(row: Row) -> None:
    ends_where_the_trainer_does(row)


@pytest.mark.parametrize("mode", ["64-true", "bf16-mixed"])
@pytest.mark.parametrize("row", [row for row in ROWS if str(row) in ("Classifier", "AugmentedExamples")], ids=str)
def test_a_client_ends_where_the_trainer_does_in_a_precision(mode: str, row: Row) -> None:
    _, ends = ends_where_the_trainer_does(row, make_flags=lambda: {"precision": mode})
    assert differences(state_of(alone(row)[0]), ends.states[0])


LOGGING = {"GAN", "Logs", "Accuracies", "Collections", "ComputesItself"}


@pytest.mark.parametrize("row", [row for row in ROWS if str(row) in LOGGING], ids=str)
def test_a_client_logs_what_the_trainer_does(row: Row) -> None:
    """In one epoch, every name that the Trainer has; values of the training to float32's precision."""
    (_, expected), (*_, logged) = alone(row, 1), as_client(row, 1)
    names = [name for name in expected if not name.endswith("_step") and not name.startswith("val/")]
    found = {name: float(logged[name]) for name in names}
    assert found == pytest.approx({name: float(expected[name]) for name in names}, rel=1e-5)


@EVERY_ROW
def test_neither_the_order_of_clients_nor_a_stop_changes_anything(row: Row, tmp_path: Path) -> None:
    """But for a buffer that is not saved, which a stop sets back."""
    other = {"clients": [2, 0, 3, 1], "clients_per_batch": 4}
    if str(row) == "NotSaved":
        assert not differences(in_order(row)[0], federated(row, data=other))
        return
    federated(row, rounds=1, end=tmp_path / "round_1.ckpt", data=other)
    assert not differences(in_order(row)[0], federated(row, start=tmp_path / "round_1.ckpt"))


@EVERY_ROW
def test_a_client_that_raises_leaves_nothing_behind(row: Row) -> None:
    others, ends = [0, 2, 3], Ends()
    with pytest.warns(UserWarning, match=r"client 1 is left out: RuntimeError: half-way"):
        left = federated(row, ends, make=failing(row.module), bad="skip", rounds=1)
    assert ends.clients == others
    assert differences(federated(row, data={"clients": others}, rounds=1), left) == ["logged clients/quarantined"]


@EVERY_ROW
def test_the_global_model_is_what_its_clients_end_with(row: Row) -> None:
    """Under FedAvg all floats, frozen or not, are the clients' mean by n_k, and whole numbers are the largest. Extra
    state is what it was, and so is a buffer that clients give different shapes. Singular vectors have unit norm.
    """
    state, ends = in_order(row)
    shares = torch.tensor([n / sum(row.sizes) for n in row.sizes], dtype=torch.complex128)
    fresh = state_of(row.wrap(row.module()))
    for name, value in state.items():
        if name.endswith("extra state"):
            assert not differences({name: fresh[name]}, {name: value})
        elif value is None:
            assert not any(isinstance(end[name], torch.Tensor) for end in ends.states.values()), name
        elif isinstance(value, torch.Tensor):
            each = [ends.states[client][name] for client in range(len(row.sizes))]
            if len({one.shape for one in each}) > 1:
                assert torch.equal(value, fresh[name]), name
                continue
            values = torch.stack(each)
            if row.module is SpectralNorm and name.endswith(("_u", "_v")):
                assert torch.allclose(value.norm(), torch.ones(())), name
                continue
            mean = torch.tensordot(shares, values.to(torch.complex128), 1)
            mixes = values.is_floating_point() or values.is_complex()
            expected = mean.real if values.is_floating_point() else mean if mixes else values.amax(0)
            assert torch.allclose(expected.to(value.dtype), value, atol=1e-6), name


class LazyToTheEnd(Net):
    """A layer that takes its shape from the first batch of the training."""

    def build(self) -> None:
        self.net = nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 3))


class HiddenParameters(Net):
    """Trains a layer of a plain list, which no ``state_dict`` shows."""

    def configure_optimizers(self) -> Any:
        hidden = [nn.Linear(4, 4)]
        return torch.optim.SGD([*self.parameters(), *hidden[0].parameters()], lr=0.1)


class ComplexWeights(Net):
    """A parameter of complex numbers beside real ones."""

    def build(self) -> None:
        self.turn = nn.Parameter(torch.randn(4, dtype=torch.complex64))


class TiedByData(Net):
    """Two parameters of one memory: ``decoder.weight.data = encoder.weight.data.T``, as old autoencoders tie them."""

    def build(self) -> None:
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 3))
        self.net[2].weight.data = self.net[0].weight.data.T


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (ComplexWeights, r"ComplexWeights must have .* float32 or float64, got .*torch.complex64"),
        (LazyToTheEnd, "LazyToTheEnd has parameters without a shape, such as net.0.weight"),
        (HiddenParameters, "HiddenParameters.configure_optimizers returns 2 parameters, the first of shape"),
        (TiedByData, "net.0.weight and net.2.weight of TiedByData share memory"),
    ],
)
def test_refused_by_name(module: type[LightningModule], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        federated(Row(module))


class Synced(Net):
    """Statistics that torch averages over all processes, which train different clients here."""

    def between(self) -> list[nn.Module]:
        return [nn.SyncBatchNorm(8)]


def test_statistics_that_devices_share_are_refused_on_two(tmp_path: Path) -> None:
    """On one device, the layer is an ordinary BatchNorm, and ends where that does."""
    (found, _) = on_two_devices(tmp_path, {"synced": partial(federated, Row(Synced))})["synced"]
    assert found.startswith("ConfigurationError: net.1 of Synced is SyncBatchNorm, which on several devices would mix")
    assert not differences(federated(Row(Synced)), federated(Row(Usual)))


class Usual(Net):
    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8)]


@pytest.fixture(scope="module")
def on_two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What the rows that are asked for end with on two devices."""
    jobs = {str(each["row"]): partial(federated, each["row"]) for each in asked_of(request)}
    return on_two_devices(tmp_path_factory.mktemp("two"), jobs)


@every(ROWS, COVER_ONCE)
def test_two_devices_give_what_one_gives(row: Row, on_two: dict[str, list[Any]]) -> None:
    for result in on_two[str(row)]:
        assert isinstance(result, dict), result
        assert not differences(in_order(row)[0], result)
