"""Any LightningModule, unmodified: every row of the table (zoo/table.py) ends in the same bits, however it is run.

Alone: one client against ``Trainer.fit``. Federated, four clients for two rounds of two epochs: clients in another
order and all in one batch; two devices, which are real processes over gloo; a stop after round 1; a client that raises
in the middle of its training, against a run without that client.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from zoo import builds
from zoo.runs import (
    EPOCHS,
    Ends,
    Fails,
    alone,
    as_client,
    differences,
    failing,
    federated,
    in_order,
    state_of,
)
from zoo.table import ROWS, Row

from fl_lightning import ConfigurationError
from fl_lightning.engine.devices.strategy import ClientParallelStrategy

PATIENCE = timedelta(seconds=20)  # longer than one device waits for the other
HANG = 600  # seconds that only processes that hang take, however busy the machine
EVERY_ROW = pytest.mark.parametrize("row", ROWS, ids=str)


@EVERY_ROW
def test_a_client_ends_where_the_trainer_does(row: Row) -> None:
    """So do the rates and counts that a module writes down in ``seen``; the training moves something."""
    module, _ = alone(row, EPOCHS)
    client, end, _ = as_client(row, EPOCHS)
    assert not differences(state_of(module), end)
    assert getattr(client, "seen", None) == getattr(module, "seen", None)
    assert differences(state_of(module), state_of(row.wrap(row.module())))


@pytest.mark.parametrize("mode", ["64-true", "bf16-mixed"])
@pytest.mark.parametrize("row", [row for row in ROWS if str(row) in ("Classifier", "AugmentedExamples")], ids=str)
def test_a_client_ends_where_the_trainer_does_in_a_precision(mode: str, row: Row) -> None:
    end = as_client(row, EPOCHS, precision=mode)[1]
    assert not differences(state_of(alone(row, EPOCHS, precision=mode)[0]), end)
    assert differences(state_of(alone(row, EPOCHS)[0]), end)


LOGGING = {"GAN", "Logs", "Accuracies", "Collections", "Lists", "ComputesItself"}


@pytest.mark.parametrize("row", [row for row in ROWS if str(row) in LOGGING], ids=str)
def test_a_client_logs_what_the_trainer_does(row: Row) -> None:
    """In one epoch, every name that the Trainer has; values of the training to float32's precision."""
    (_, expected), (*_, logged) = alone(row, 1), as_client(row, 1)
    expected = {name: float(value) for name, value in expected.items() if not name.endswith("_step")}
    expected = {name: value for name, value in expected.items() if not name.startswith("val/")}
    found = {name: float(logged[name]) for name in expected if name in logged}
    assert found == pytest.approx(expected, rel=1e-5)


@EVERY_ROW
def test_the_order_of_clients_changes_nothing(row: Row) -> None:
    assert not differences(in_order(row)[0], federated(row, data={"clients": [2, 0, 3, 1], "clients_per_batch": 4}))


@pytest.mark.parametrize("row", [row for row in ROWS if str(row) != "NotSaved"], ids=str)
def test_a_stop_changes_nothing(row: Row, tmp_path: Path) -> None:
    federated(row, rounds=1, end=tmp_path / "round_1.ckpt")
    assert not differences(in_order(row)[0], federated(row, start=tmp_path / "round_1.ckpt"))


@EVERY_ROW
def test_a_client_that_raises_leaves_nothing_behind(row: Row) -> None:
    others, ends = [0, 2, 3], Ends()
    with pytest.warns(UserWarning, match=r"client 1 is left out: RuntimeError: half-way"):
        left = federated(row, Fails(), ends, make=failing(row.module), bad="skip")
    assert list(ends.states) == others
    assert differences(federated(row, data={"clients": others}), left) == ["logged clients/quarantined"]


@EVERY_ROW
def test_the_global_model_is_what_its_clients_end_with(row: Row) -> None:
    """Under FedAvg all floats, frozen or not, are the clients' mean by n_k, and whole numbers are the largest. Extra
    state is what it was, and so is a buffer that clients give different shapes.
    """
    state, ends = in_order(row)
    clients = [ends.states[k] for k in sorted(ends.states)]
    shares = torch.tensor([n / sum(row.sizes) for n in row.sizes], dtype=torch.complex128)
    fresh = state_of(row.wrap(row.module()))
    for name, value in state.items():
        if name.endswith("extra state"):
            assert not differences({name: fresh[name]}, {name: value})
        elif isinstance(value, torch.Tensor):
            if len({client[name].shape for client in clients}) > 1:
                assert torch.equal(value, fresh[name]), name
                continue
            values = torch.stack([client[name] for client in clients])
            mean = torch.tensordot(shares, values.to(torch.complex128), 1)
            mixes = values.is_floating_point() or values.is_complex()
            expected = mean.real if values.is_floating_point() else mean if mixes else values.amax(0)
            assert torch.allclose(expected.to(value.dtype), value, atol=1e-6), name


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (builds.ComplexWeights, r"ComplexWeights must have .* float32 or float64, got .*torch.complex64"),
        (builds.LazyToTheEnd, "LazyToTheEnd has parameters without a shape, such as net.0.weight"),
        (builds.HiddenParameters, "HiddenParameters.configure_optimizers returns 4 parameters, the first of shape"),
        (builds.TiedByData, "net.0.weight and net.2.weight of TiedByData share memory"),
    ],
)
def test_refused_by_name(module: type[LightningModule], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        federated(Row(module))


# Two devices


def _train_all(rank: int, folder: Path) -> None:
    """Train every row in one of two processes; an error is written down in place of the result."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", str(rank))
        for row in ROWS:
            meeting = f"file://{folder / f'{row}.meeting'}"
            try:
                torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=2, timeout=PATIENCE)
                result: Any = federated(row, strategy=ClientParallelStrategy(), devices=2)
            except BaseException as error:
                result = f"{type(error).__name__}: {error}"
            finally:
                torch.distributed.destroy_process_group()  # so that the other process, which may wait, fails too
            torch.save(result, folder / f"{row}.{rank}")


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of all rows on two devices, forked from this process to save imports."""
    folder = tmp_path_factory.mktemp("two")
    started = torch.multiprocessing.start_processes(_train_all, (folder,), nprocs=2, join=False, start_method="fork")
    assert started is not None
    assert started.join(HANG) or started.join(HANG)  # join returns when the first has ended, and then the second
    return folder


@EVERY_ROW
def test_two_devices_give_what_one_gives(row: Row, on_two: Path) -> None:
    for rank in range(2):
        result = torch.load(on_two / f"{row}.{rank}", weights_only=False)
        assert isinstance(result, dict), result
        assert not differences(in_order(row)[0], result)
