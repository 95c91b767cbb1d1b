"""Rounds: who trains, what is left out, what the server makes of the rest, by hand on the toy problems."""

import warnings
from typing import Any

import pytest
import torch
from lib.toy import (
    UPDATES,
    GivenData,
    Linear,
    Normalized,
    NormalizedData,
    Notes,
    Quadratic,
    ToyData,
    close,
    send,
    train,
    trainer,
)
from torch import Tensor, nn
from torch.utils.data import Dataset

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, FederatedOrchestrator, Monitor
from fl_lightning.engine.federation.data import ClientIds
from fl_lightning.engine.module.failures import error_text
from fl_lightning.runs.catalogue import Metric

NAN = float("nan")


# What is left out


class Raising(Linear):
    """Raises on the client whose row starts with -7."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch[0][0, 0] == -7:
            raise ValueError("no such label")
        return super().training_step(batch, batch_idx)


def quarantine(bad: Any, where: int = 1, **settings: Any) -> Tensor:
    """The model of two rounds in which one of four clients sends ``bad``; the others (1, 0), (0, 1), (4, 4)."""
    rows = -torch.tensor([[1.0, 0.0], [0.0, 1.0], [4.0, 4.0]], dtype=torch.float64)
    rows = torch.cat([rows[:where], torch.tensor([bad], dtype=torch.float64), rows[where:]])
    samples = [1, 1, 2]
    samples.insert(where, 100)
    orchestrator = FederatedOrchestrator(Raising(2), **settings)
    trainer(rounds=2).fit(orchestrator, datamodule=GivenData(rows, samples=samples))
    return orchestrator.params


@pytest.mark.parametrize(
    ("bad", "reason", "where"),
    [
        ([NAN, 0.0], "its update is not finite", 0),
        ([1.0, float("-inf")], "its update is not finite", 3),
        ([-7.0, 0.0], "ValueError: no such label", 1),
    ],
)
def test_a_bad_client_is_named_and_left_out(bad: list[float], reason: str, where: int) -> None:
    """Once, though in both rounds. The rest have n = 1, 1, 2: ((1, 0) + (0, 1) + 2·(4, 4))/4 = (2.25, 2.25) a round."""
    with pytest.warns(UserWarning, match="left out") as caught:
        model = quarantine(bad, where)
    said = [str(warning.message) for warning in caught if "left out" in str(warning.message)]
    assert said == [
        f"round 1: client {where} is left out: {reason}",
        "updates left out in this fit: 2, in 2 of 2 rounds (see clients/quarantined)",
    ]
    assert close(model, (4.5, 4.5))


def test_one_example_is_too_few_for_batch_normalization() -> None:
    with pytest.raises(ValueError, match="per channel when training") as raised:
        nn.BatchNorm1d(2)(torch.zeros(1, 2))
    assert "(--data.drop_last true) leaves out a last batch of one" in error_text(raised.value, Linear(2))


@pytest.mark.parametrize(("bad", "reason"), [([NAN, 0.0], "not finite"), ([-7.0, 0.0], "ValueError: no such label")])
def test_policy_raise_stops_at_a_bad_client(bad: list[float], reason: str) -> None:
    with pytest.raises(RuntimeError, match=f"round 1: client 1 is left out: .*{reason}"):
        quarantine(bad, on_bad_update="raise")


def test_a_round_without_any_good_client_is_an_error() -> None:
    message = r"client 0 .* not finite; so is every other one"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match=message):
            send([[NAN, 0.0], [0.0, NAN]])
    assert not [each for each in caught if "left out" in str(each.message)]  # one line, not one for each client


class Turns(GivenData):
    """One client a round, by turns."""

    def cohort(self, round: int) -> list[int]:
        return [(round - 1) % self.num_clients]


def test_a_round_whose_only_client_is_bad_is_skipped() -> None:
    """Client 0 sends (1, 0), client 2 (0, 3), twice each, under a server momentum of a half: the velocities are 1, 0.5,
    1.25, 0.625 and 0, 3, 1.5, 3.75. The rounds of client 1 change nothing, not even the momentum.
    """
    rows = torch.tensor([[1.0, 0.0], [NAN, 0.0], [0.0, 3.0]], dtype=torch.float64)
    momentum: Any = lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.5)  # noqa: E731
    orchestrator, run = FederatedOrchestrator(Linear(2), server_optimizer=momentum), trainer(rounds=6)
    with pytest.warns(UserWarning, match="round 2 is skipped: its only client is left out") as told:
        run.fit(orchestrator, datamodule=Turns(-rows, participation=1))
    assert sum("is skipped" in str(each.message) for each in told) == 2
    assert close(orchestrator.params, (1 + 0.5 + 1.25 + 0.625, 3 + 1.5 + 3.75))
    assert (run.global_step, orchestrator.rounds_done) == (6, 6)


def test_as_many_skipped_rounds_as_clients_are_an_error() -> None:
    rows = torch.full((3, 2), NAN, dtype=torch.float64)
    run = trainer(rounds=9)
    message = "round 3: client 2 is left out: its update is not finite; so is every other one"
    with pytest.warns(UserWarning, match="is skipped"), pytest.raises(RuntimeError, match=message):
        run.fit(FederatedOrchestrator(Linear(2)), datamodule=Turns(rows, participation=1))


class SkipsBad(Normalized):
    """Skips a loss that is not finite, as careful modules do: its statistics have seen the batch all the same."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss if loss.isfinite() else None


class InfiniteInput(NormalizedData):
    def client_dataset(self, client: int) -> Dataset[Any]:
        dataset: Any = super().client_dataset(client)
        if client == 0:
            dataset.tensors[0][0] = float("inf")
        return dataset  # type: ignore[no-any-return]


def test_buffers_that_are_not_finite_do_not_reach_the_model() -> None:
    """Client 0's running mean becomes inf, its update is zero; client 1 alone has (0.3, 2.7)."""
    orchestrator = FederatedOrchestrator(SkipsBad())
    with pytest.warns(UserWarning, match="client 0 is left out"):
        trainer().fit(orchestrator, datamodule=InfiniteInput())
    assert close(torch.cat(list(orchestrator.client.buffers())[:2]), (0.3, 2.7))


# What the server makes of it


class Reducer(FederatedCallback):
    """The update in place of the weighted sum: the coordinate-wise median."""

    def reduce(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Tensor:
        return cohort.deltas.median(0).values


class OtherReducer(Reducer):
    pass


class Counts(Monitor):
    metrics = (Metric("counts/one", "One"), Metric("counts/two", "Two"))


class CountsAgain(Monitor):
    metrics = (Metric("counts/two", "Another two"), Metric("counts/three", "Three"))


def test_two_callbacks_that_log_one_metric_are_refused() -> None:
    """Lightning would log the mean of the two, which is neither's."""
    with pytest.raises(
        ConfigurationError, match="Counts and CountsAgain do not go together: both log counts/two, whose"
    ):
        send(UPDATES, Counts(), CountsAgain())
    for own in (Counts(), CountsAgain()):
        own.metrics = {"loss": []}  # type: ignore[misc, assignment]  # of the user's own kind
        assert close(send(UPDATES, own)[0], (0.0, -1 / 3))


def test_a_reducer_replaces_the_sum_and_a_second_one_is_refused() -> None:
    """Medians of (2, -1, -1) and (0, 1, -2)."""
    assert close(send(UPDATES, Reducer())[0], (-1.0, 0.0))
    with pytest.raises(ConfigurationError, match="Reducer and OtherReducer do not go together: both replace"):
        send(UPDATES, Reducer(), OtherReducer())


class Doubles(FederatedCallback):
    def update(self, orchestrator: FederatedOrchestrator, cohort: Cohort, update: Tensor) -> Tensor:
        return 2 * update


class Shifts(FederatedCallback):
    def update(self, orchestrator: FederatedOrchestrator, cohort: Cohort, update: Tensor) -> Tensor:
        return update + 1

    def refine(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
        orchestrator.params.mul_(10)


class Diverges(FederatedCallback):
    def refine(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
        orchestrator.params.mul_(float("inf"))


def test_a_refinement_that_diverges_stops_the_run() -> None:
    with pytest.raises(
        RuntimeError, match="round 1: every client's update is finite, but the result of Diverges is not"
    ):
        send(UPDATES, Diverges())


def test_update_hooks_run_in_order_then_the_server_steps_then_refine() -> None:
    """The uniform mean is (0, -1/3): 10·(2 u + 1) and 10·2·(u + 1)."""
    assert close(send(UPDATES, Doubles(), Shifts())[0], (10.0, 10 / 3))
    assert close(send(UPDATES, Shifts(), Doubles())[0], (20.0, 40 / 3))


def test_local_steps_begin_the_data_again() -> None:
    """Three steps each. Client 0 has two batches; its third from (0.19, -0.36): (0.271, -0.488).

    ((0.271 - 3·1.314)/4, (-0.488 + 3·0.28525)/4).
    """
    assert close(train(local_steps=3), (-0.91775, 0.0919375))
    assert torch.equal(train(local_epochs=2, on_bad_update="raise"), train(local_epochs=2))


class Logs(Quadratic):
    snapshot = True

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.log("w", self.w[0].clone() if self.snapshot else self.w[0])
        self.log_dict({"step_no": float(batch_idx)}, prog_bar=True)
        return super().training_step(batch, batch_idx)


class LogsLive(Logs):
    """Logs the parameter itself, which then trains on."""

    snapshot = False


@pytest.mark.parametrize("make", [Logs, LogsLive])
def test_what_clients_log_is_averaged_over_steps_then_samples(make: type[Logs]) -> None:
    """w[0] before each step: 0, 0.1 → 0.05 on client 0; 0, -0.6, -1.02 → -0.54 on client 1: (0.05 - 3·0.54)/4.

    The step's number: (0.5 + 3·1)/4. Losses 1.5, 1.045 → 1.2725; 7, 3.8425, 2.25510625 → 13.09760625/3:
    (1.2725 + 13.09760625)/4.
    """
    run = trainer()
    run.fit(FederatedOrchestrator(make()), datamodule=ToyData())
    expected = {"w": -0.3925, "step_no": 0.875, "train/loss": 3.5925265625, "round": 1.0, "clients/quarantined": 0.0}
    assert {name: float(value) for name, value in run.callback_metrics.items()} == pytest.approx(expected, abs=1e-6)


# The Trainer around it


class TransferHooks:
    """Turns B into 0, so that w = 0 is the minimum of T and nothing moves; keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Any] = Notes()

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.shown.append(batch)
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        self.shown.append(batch)
        return batch

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.shown.append(batch)
        return [batch[0], 0 * batch[1]]


class HookedModule(TransferHooks, Quadratic):
    pass


class HookedData(TransferHooks, ToyData):
    pass


@pytest.mark.parametrize("where", ["module", "data"])
def test_transfer_hooks_see_batches_and_no_client_ids(where: str) -> None:
    """Three hooks for each of 2 + 3 batches."""
    module = HookedModule() if where == "module" else Quadratic()
    data = HookedData() if where == "data" else ToyData()
    orchestrator: FederatedOrchestrator = FederatedOrchestrator(module, on_hidden_state="off")
    trainer().fit(orchestrator, datamodule=data)
    shown = (module if where == "module" else data).shown  # type: ignore[union-attr]
    assert len(shown) == 15
    assert not any(isinstance(batch, ClientIds) for batch in shown)
    assert close(orchestrator.params, (0.0, 0.0), 0.0)


@pytest.mark.parametrize(("batches", "expected"), [(True, (0.19, -0.36)), (5, (-0.938, 0.1239375))])
def test_fast_dev_run(batches: Any, expected: tuple[float, float]) -> None:
    """One round: of its first client alone, or of five at most; the others are not left out."""
    orchestrator, short = FederatedOrchestrator(Quadratic()), trainer(rounds=3, fast_dev_run=batches)
    short.fit(orchestrator, datamodule=ToyData())
    assert orchestrator.rounds_done == 1
    assert short.callback_metrics["clients/quarantined"] == 0
    assert close(orchestrator.params, expected)


@pytest.mark.parametrize(
    "flag",
    [
        {"gradient_clip_val": 1.0},
        {"accumulate_grad_batches": 2},
        {"limit_train_batches": 0.5},
        {"limit_train_batches": 1},
        {"overfit_batches": 0.5},
        {"val_check_interval": 0.5},
        {"val_check_interval": 1},
        {"precision": "bf16-true"},
        {"reload_dataloaders_every_n_epochs": 1},
    ],
    ids=str,
)
def test_trainer_flags_that_mean_something_else_are_refused(flag: dict[str, Any]) -> None:
    """An int 1 is one batch, hence one client: no less wrong than 2, though 1 == 1.0."""
    with pytest.raises(ConfigurationError, match=f"trainer.{next(iter(flag))}.* means something else here"):
        trainer(**flag).fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())


def test_a_module_without_an_orchestrator_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"FederatedOrchestrator\(Quadratic\(…\)\).*, got Quadratic itself"):
        trainer().fit(Quadratic(), datamodule=ToyData())


def test_other_data_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="FederatedDataModule"):
        trainer().fit(FederatedOrchestrator(Quadratic()), train_dataloaders=[1, 2])


class Twin(nn.Module):
    __module__ = "pytorch_lightning.core.module"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2), "expected a LightningModule of lightning.pytorch, got Linear: put the network in one"),
        (Twin(), "got Twin: pytorch_lightning is another package .* import lightning.pytorch in its place"),
    ],
)
def test_other_modules_are_refused(module: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FederatedOrchestrator(module)
