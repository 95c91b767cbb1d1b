"""What rules keep for their clients, in memory or on disk: the same values, and nothing is lost by a stop or a kill."""

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from command import HANG, TINY, fit, fit_on, rows, run
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from resumed import assert_same
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun
from fl_lightning.engine.client_states import DiskState, client_bytes
from fl_lightning.runs.checkpoints import BestCheckpoint, LastCheckpoint

CLIENTS, DRAWN, SIZE = 6, 3, 4
UPDATES = torch.randn(CLIENTS, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Totals(FederatedCallback):
    """Keeps the sum of each client's updates, and of all; both change how clients train from then on."""

    def on_before_client_step(self, run: LocalRun) -> None:
        own = self.recall(f"sum/{run.client}", torch.zeros_like(run.grads))
        run.grads.add_(own + self.recall("all", own), alpha=0.1)

    def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
        zero = torch.zeros_like(cohort.anchor)
        for client, delta in zip(cohort.clients, cohort.deltas, strict=True):
            self.state[f"sum/{client}"] = self.recall(f"sum/{client}", zero) + delta
        self.state["all"] = self.recall("all", zero) + cohort.deltas.sum(0)
        return cohort


class Often(BestCheckpoint):
    """best.ckpt after every round."""

    def __init__(self) -> None:
        super().__init__(monitor="round")


def train(
    folder: Path,
    rounds: int = 8,
    *callbacks: Callback,
    states: Any = "disk",
    resume: Path | None = None,
    rule: FederatedCallback | None = None,
    participation: int = DRAWN,
) -> tuple[FederatedOrchestrator, Any]:
    """Half of six clients with given updates a round; the orchestrator and the rule afterwards."""
    orchestrator = FederatedOrchestrator(toy.Linear(SIZE), client_states=states, on_bad_update="raise")
    rule = rule or Totals()
    data = toy.GivenData(-UPDATES, samples=[1, 2, 3, 4, 5, 6], participation=participation)
    trainer = toy.trainer(
        rule, *(callbacks or [LastCheckpoint()]), rounds=rounds, default_root_dir=folder, enable_checkpointing=True
    )
    trainer.fit(orchestrator, datamodule=data, ckpt_path=resume)
    return orchestrator, rule


def files(folder: Path, rule: str = "Totals") -> list[str]:
    """Those of single clients, relative to the rule's folder."""
    root = folder / "states" / rule
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != "id")


def per_client(folder: Path) -> Counter[str]:
    """How many files each client has."""
    return Counter(file.split(".")[0] for file in files(folder))


def last(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def equal(one: Any, other: Any) -> bool:
    """Whether two mappings hold the same tensors bit for bit."""
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


# Values


def test_disk_holds_what_memory_holds(tmp_path: Path) -> None:
    """Model and every state after 8 rounds, bit for bit; some client must have taken part again to be read."""
    (in_memory, kept), (on_disk, filed) = (train(tmp_path / kind, states=kind) for kind in ("memory", "disk"))
    assert torch.equal(in_memory.params, on_disk.params)
    assert isinstance(kept.state, dict)
    assert isinstance(filed.state, DiskState)
    assert equal(kept.state, filed.state)
    assert client_bytes(kept.state) == client_bytes(filed.state) == CLIENTS * SIZE * 8
    assert not files(tmp_path / "memory")


def test_the_first_round_by_hand(tmp_path: Path) -> None:
    """From nothing, each client's sum is its update, and "all" is their sum."""
    _, rule = train(tmp_path, rounds=1, participation=CLIENTS)
    assert all(toy.close(rule.state[f"sum/{k}"], UPDATES[k]) for k in range(CLIENTS))
    assert toy.close(rule.state["all"], UPDATES.sum(0))
    assert files(tmp_path) == [f"sum/{k}.{k + 1}.safetensors" for k in range(CLIENTS)]


def test_only_clients_that_took_part_have_files(tmp_path: Path) -> None:
    orchestrator, rule = train(tmp_path, rounds=1)
    drawn = orchestrator.data.cohort(1)
    assert len(drawn) == DRAWN
    assert per_client(tmp_path) == Counter({f"sum/{k}": 1 for k in drawn})
    assert set(rule.state) == {"all", *(f"sum/{k}" for k in drawn)}
    assert len(rule.state) == DRAWN + 1


def test_rules_without_states_of_clients_leave_no_folder(tmp_path: Path) -> None:
    class Shared(FederatedCallback):
        def on_round_end(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
            self.state["count"] = self.recall("count", torch.zeros(())) + 1

    _, rule = train(tmp_path, 2, LastCheckpoint(), rule=Shared())
    assert float(rule.state["count"]) == 2
    assert not (tmp_path / "states").exists()
    _, rule = train(tmp_path, 3, LastCheckpoint(), rule=Shared(), resume=last(tmp_path))
    assert float(rule.state["count"]) == 3


# Files come and go


class Count(FederatedCallback):
    """The most files that any client has when a round's states are set, and after the round's checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.set: list[int] = []
        self.saved: list[int] = []

    def on_round_end(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
        self.set.append(max(per_client(self.folder).values()))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.saved.append(max(per_client(self.folder).values(), default=0))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("best", [False, True])
def test_no_client_has_more_than_two_files(tmp_path: Path, every: int, best: bool) -> None:
    """The present value, and the one that the last checkpoint needs; with a checkpoint every three rounds and every
    client in every round, also the one that the last round left behind, until the next round ends.
    """
    count = Count(tmp_path)
    checkpoints = [ModelCheckpoint(every_n_epochs=every, save_top_k=-1), *([Often()] if best else [])]
    train(tmp_path, 9, count, *checkpoints, participation=CLIENTS)
    assert count.saved[:3] == [0, 1, 2]
    if every == 1 or best:
        assert set(count.set[1:]) == {2}
    else:
        assert max(count.set) == max(count.saved) == 3
    assert len(per_client(tmp_path)) == CLIENTS


def test_without_checkpoints_the_last_round_s_old_files_are_left(tmp_path: Path) -> None:
    """No checkpoint ever needs a file: those that a round replaces go when the next one sets its own."""
    train(tmp_path, 6, Count(tmp_path), participation=CLIENTS)
    assert files(tmp_path) == sorted(f"sum/{k}.{6 * r + k + 1}.safetensors" for r in (4, 5) for k in range(CLIENTS))


def test_a_file_stays_until_a_later_checkpoint_is_complete(tmp_path: Path) -> None:
    """The checkpoint of round 1 names file 1. Round 2 replaces it; while its checkpoint is being made, and even when
    that is under way only, file 1 must be there. Round 3 comes after that checkpoint: file 1 goes, file 2 stays.
    """
    round, state = [1], DiskState(writes=True)
    state.open(tmp_path, lambda: round[0])

    def there() -> list[int]:
        return sorted(int(path.name.split(".")[1]) for path in tmp_path.glob("c/*"))

    state["c/7"] = torch.ones(2)
    round[0] = 2
    first = state.state_dict()
    state["c/7"] = torch.ones(2) * 2
    assert there() == [1, 2]
    round[0] = 3
    second = state.state_dict()
    state.state_dict()  # of another checkpoint callback
    assert there() == [1, 2]
    for saved, value in ((first, 1.0), (second, 2.0)):
        again = DiskState(writes=True)
        again.load_state_dict(saved)
        again.open(tmp_path, lambda: 2)
        assert torch.equal(again["c/7"], torch.full((2,), value))
    state["c/7"] = torch.ones(2) * 3
    assert there() == [2, 3]


def test_a_file_that_no_checkpoint_names_goes_in_the_next_round(tmp_path: Path) -> None:
    """Not in the same one: another device may be about to read it."""
    round, state = [1], DiskState(writes=True)
    state.open(tmp_path, lambda: round[0])
    for value in range(3):
        state["c/0"] = torch.tensor(value)
    assert len(list(tmp_path.glob("c/*"))) == 3
    round[0] = 2
    state["c/1"] = torch.tensor(9)
    assert sorted(path.name for path in tmp_path.glob("c/*")) == ["0.3.safetensors", "1.4.safetensors"]


def test_what_is_deleted_is_gone(tmp_path: Path) -> None:
    state = DiskState(writes=True)
    state.open(tmp_path, lambda: 1)
    state["c/0"], state["c"] = torch.ones(3), torch.ones(1)
    assert state.nbytes == 12
    del state["c/0"], state["c"]
    assert (len(state), state.nbytes, list(state)) == (0, 0, [])
    for name in ("c", "c/0"):
        assert name not in state
        with pytest.raises(KeyError):
            state[name]
        with pytest.raises(KeyError):
            del state[name]


# Stop and resume


@pytest.mark.parametrize("states", ["memory", "disk"])
@pytest.mark.parametrize(
    "checkpoints",
    [[LastCheckpoint], [LastCheckpoint, Often], [Often, LastCheckpoint]],
    ids=["last", "last and best", "best and last"],
)
def test_a_stopped_run_goes_on(tmp_path: Path, states: str, checkpoints: Sequence[type[Callback]]) -> None:
    """Half of the clients a round: those not drawn since keep what they had. 5 rounds of 8, then the rest."""
    whole, kept = train(tmp_path / "whole", 8, *(make() for make in checkpoints), states=states)
    part = tmp_path / "part"
    train(part, 5, *(make() for make in checkpoints), states=states)
    resumed, again = train(part, 8, *(make() for make in checkpoints), states=states, resume=last(part))
    assert torch.equal(whole.params, resumed.params)
    assert equal(kept.state, again.state)
    assert_same(last(tmp_path / "whole"), last(part))
    assert max(per_client(part).values(), default=0) <= 2


def test_a_run_with_a_checkpoint_every_three_rounds_goes_on_from_it(tmp_path: Path) -> None:
    """Stopped after round 8, whose last checkpoint is that of round 6; rounds 7 and 8 are done again."""
    whole, kept = train(tmp_path / "whole", 10)

    def every() -> ModelCheckpoint:
        return ModelCheckpoint(dirpath=tmp_path / "part", filename="{epoch}", every_n_epochs=3, save_top_k=-1)

    train(tmp_path / "part", 8, every())
    resumed, again = train(tmp_path / "part", 10, every(), resume=tmp_path / "part" / "epoch=5.ckpt")
    assert torch.equal(whole.params, resumed.params)
    assert equal(kept.state, again.state)


def test_an_older_checkpoint_serves_as_long_as_its_files_are_there(tmp_path: Path) -> None:
    """Going on from round 4 (of 5, saved every round) must not spoil what round 5's checkpoint names."""

    def each() -> ModelCheckpoint:
        return ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)

    whole, _ = train(tmp_path / "whole", 6)
    train(tmp_path, 5, each())
    fifth = torch.load(tmp_path / "epoch=4.ckpt", weights_only=True)["callbacks"]["Totals"]["files"]
    before = {n: load_file(tmp_path / f"states/Totals/{file}.safetensors") for n, file in fifth.items()}
    resumed, _ = train(tmp_path, 5, each(), resume=tmp_path / "epoch=3.ckpt")
    assert torch.equal(resumed.params, train(tmp_path / "five", 5)[0].params)
    for name, file in fifth.items():
        assert torch.equal(load_file(tmp_path / f"states/Totals/{file}.safetensors")["value"], before[name]["value"])
    resumed, _ = train(tmp_path, 6, each(), resume=tmp_path / "epoch=4.ckpt")
    assert torch.equal(whole.params, resumed.params)


def test_a_checkpoint_whose_files_are_gone_is_refused_in_one_line(tmp_path: Path) -> None:
    """The fourth checkpoint before the last one; and the last one when a file was lost."""
    keep_all = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
    train(tmp_path, 6, keep_all, participation=CLIENTS)
    with pytest.raises(ConfigurationError) as refused:
        train(tmp_path, 7, resume=tmp_path / "epoch=1.ckpt", participation=CLIENTS)
    gone = tmp_path / "states/Totals/sum/0.7.safetensors"
    assert str(refused.value) == (
        f"the checkpoint needs 6 client states that are gone, such as {gone}: go on from the run's last.ckpt, with the "
        "run folder where it was"
    )
    (tmp_path / "states/Totals" / files(tmp_path)[-1]).unlink()
    with pytest.raises(ConfigurationError, match="needs 1 client states that are gone"):
        train(tmp_path, 7, resume=tmp_path / "epoch=5.ckpt", participation=CLIENTS)


@pytest.mark.parametrize(("before", "now", "where"), [("memory", "disk", "in memory"), ("disk", "memory", "on disk")])
def test_the_place_cannot_change_in_between(tmp_path: Path, before: str, now: str, where: str) -> None:
    train(tmp_path, 2, states=before)
    with pytest.raises(ConfigurationError) as refused:
        train(tmp_path, 3, states=now, resume=last(tmp_path))
    assert str(refused.value) == (
        f"the checkpoint keeps the client states of Totals {where}: set model.client_states as it was"
    )


def test_a_run_whose_rules_keep_nothing_may_change_it(tmp_path: Path) -> None:
    train(tmp_path, 1, rule=FederatedCallback(), states="disk")
    train(tmp_path, 2, rule=FederatedCallback(), states="memory", resume=last(tmp_path))
    train(tmp_path, 3, rule=FederatedCallback(), states="disk", resume=last(tmp_path))
    assert torch.load(last(tmp_path), weights_only=True)["rounds_done"] == 3


def test_stops_leave_no_files_behind(tmp_path: Path) -> None:
    """Stopped after each of 6 rounds: what a checkpoint no longer needs is deleted by the run that goes on from it."""
    for rounds in range(1, 7):
        resume = last(tmp_path) if rounds > 1 else None
        train(tmp_path, rounds, participation=CLIENTS, resume=resume)
        assert set(per_client(tmp_path).values()) == {min(rounds, 2)}


# Folders


def test_a_run_folder_may_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moved, and gone on with from another working directory; then its old place is another run's."""
    whole, kept = train(tmp_path / "whole", 8)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    train(Path("before"), 5)
    shutil.move("before", "after")
    train(Path("before"), 5, rule=Totals(), participation=2)
    monkeypatch.chdir("elsewhere")
    resumed, again = train(Path("../after"), 8, resume=last(tmp_path / "after"))
    assert torch.equal(whole.params, resumed.params)
    assert equal(kept.state, again.state)


def test_a_run_may_go_on_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """As loggers with a new version each do. What it came from stays as it is, and it can be followed again."""
    whole, kept = train(tmp_path / "whole", 9)
    train(tmp_path / "a", 4)
    content = {file: (tmp_path / "a/states/Totals" / file).read_bytes() for file in files(tmp_path / "a")}
    train(tmp_path / "b", 7, resume=last(tmp_path / "a"))
    resumed, again = train(tmp_path / "c", 9, resume=last(tmp_path / "b"))
    assert torch.equal(whole.params, resumed.params)
    assert equal(kept.state, again.state)
    assert content == {file: (tmp_path / "a/states/Totals" / file).read_bytes() for file in files(tmp_path / "a")}
    shutil.rmtree(tmp_path / "a/states")
    with pytest.raises(ConfigurationError, match=r"client states that are gone, such as .*/a/states/Totals/"):
        train(tmp_path / "d", 7, resume=last(tmp_path / "a"))


def test_a_run_that_is_alike_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    """Another run in the new folder has files of the same names, with other values: its numbers are not used."""
    whole, kept = train(tmp_path / "whole", 6)
    train(tmp_path / "a", 4)

    class Doubled(Totals):
        def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
            super().aggregate(orchestrator, cohort.replace(deltas=2 * cohort.deltas))
            return cohort

    Doubled.__name__ = Doubled.__qualname__ = "Totals"
    train(tmp_path / "b", 4, rule=Doubled())
    other = {file: (tmp_path / "b/states/Totals" / file).read_bytes() for file in files(tmp_path / "b")}
    assert files(tmp_path / "a") == files(tmp_path / "b")
    resumed, again = train(tmp_path / "b", 6, resume=last(tmp_path / "a"))
    assert torch.equal(whole.params, resumed.params)
    assert equal(kept.state, again.state)
    assert {file: (tmp_path / "b/states/Totals" / file).read_bytes() for file in other} == other
    shutil.move(tmp_path / "a", tmp_path / "moved")
    shutil.copytree(tmp_path / "b", tmp_path / "a")
    with pytest.raises(ConfigurationError, match="client states that are gone"):
        train(tmp_path / "c", 6, resume=last(tmp_path / "moved"))


def test_a_second_run_in_one_folder_leaves_the_first_ones_files(tmp_path: Path) -> None:
    """Without a logger, all runs share a folder; the first one's checkpoint still serves."""
    whole, _ = train(tmp_path / "whole", 6)
    train(tmp_path, 4)
    shutil.copy(last(tmp_path), tmp_path / "first.ckpt")
    train(tmp_path, 4, rule=Totals(), participation=2)
    resumed, _ = train(tmp_path, 6, resume=tmp_path / "first.ckpt")
    assert torch.equal(whole.params, resumed.params)


def test_two_runs_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    one, other = DiskState(writes=True), DiskState(writes=True)
    one.open(tmp_path, lambda: 1)
    other.open(tmp_path, lambda: 1)
    one["c/0"] = torch.ones(1)
    with pytest.raises(ConfigurationError, match=r"^another run keeps its client states in .* at this time: give each"):
        other["c/0"] = torch.zeros(1)
    assert torch.equal(one["c/0"], torch.ones(1))


def test_two_rules_of_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    class Outer:
        class Totals(Totals):
            pass

    class Both(FederatedCallback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            assert len({rule.state_key for rule in pl_module.rules}) == 3

    other = Outer.Totals()
    _, rule = train(tmp_path, 3, Both(), other, LastCheckpoint())
    assert equal(rule.state, other.state)
    assert len(list((tmp_path / "states").iterdir())) == 2


def test_a_trial_run_leaves_its_states_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fast_dev_run has no log folder; the working directory stays clean."""
    monkeypatch.chdir(tmp_path)
    orchestrator = FederatedOrchestrator(toy.Linear(SIZE), client_states="disk")
    trainer = toy.trainer(Totals(), fast_dev_run=True, logger=True, default_root_dir="root")
    trainer.fit(orchestrator, datamodule=toy.GivenData(-UPDATES))
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert len(files(tmp_path / "root")) == 1, "one batch of one client"


@pytest.mark.parametrize("states", ["memory", "disk"])
def test_a_test_after_the_fit_keeps_the_states(tmp_path: Path, states: Any) -> None:
    """They can be looked at, and the Trainer's own save_checkpoint holds them."""

    class Tested(toy.Linear):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            pass

    class Data(toy.GivenData):
        def test_dataloader(self) -> Any:
            return DataLoader([0])  # type: ignore[arg-type]

    orchestrator, rule, data = FederatedOrchestrator(Tested(SIZE), client_states=states), Totals(), Data(-UPDATES)
    trainer = toy.trainer(rule, rounds=2, default_root_dir=tmp_path)
    trainer.fit(orchestrator, datamodule=data)
    kept = {name: value.clone() for name, value in rule.state.items()}
    assert len(kept) == CLIENTS + 1
    trainer.test(orchestrator, datamodule=data, verbose=False)
    assert equal(rule.state, kept)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    _, resumed = train(tmp_path, 2, resume=tmp_path / "own.ckpt", states=states)
    assert equal(resumed.state, kept)


# One file


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    """A row of a larger tensor, a transposed and an expanded one, no dimension, no element; other dtypes; a graph."""
    state = DiskState(writes=True)
    state.open(tmp_path, lambda: 1)
    large = torch.arange(12.0).reshape(3, 4)
    values = [large[1], large.T, large[0, :1].expand(5), torch.tensor(3.0), torch.empty(0)]
    values += [large.to(dtype) for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool)]
    for k, value in enumerate(values):
        state[f"c/{k}"] = value
        assert (tmp_path / f"c/{k}.{k + 1}.safetensors").stat().st_size < 1000, "the row alone"
    large.zero_()
    again = [torch.arange(4.0, 8.0), torch.arange(12.0).reshape(3, 4).T, torch.zeros(5)]
    assert all(torch.equal(state[f"c/{k}"], value) for k, value in enumerate(again))
    assert [state[f"c/{k}"].dtype for k in range(len(values))] == [value.dtype for value in values]
    assert [state[f"c/{k}"].shape for k in range(len(values))] == [value.shape for value in values]
    state["c/graph"] = torch.ones(2, requires_grad=True) * 2
    assert torch.equal(state["c/graph"], torch.full((2,), 2.0))


def test_values_are_not_kept_in_memory(tmp_path: Path) -> None:
    """Neither what is set nor what is read; the file is mapped, so that reading a little costs a little."""
    state = DiskState(writes=True)
    state.open(tmp_path, lambda: 1)
    value = torch.ones(1000)
    state["c/0"] = value
    read = state["c/0"]
    references = [weakref.ref(value), weakref.ref(read)]
    del value, read
    gc.collect()
    assert [reference() for reference in references] == [None, None]

    state["c/1"] = torch.ones(16_000_000)  # 64 MB
    before = resident()
    large = state["c/1"]
    assert float(large[0]) == 1.0
    assert resident() - before < 16e6
    assert float(large.sum()) == 16e6
    assert resident() - before > 48e6, "it is there once it is read"


def resident() -> int:
    """Bytes of this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_tensor_outlives_its_file_and_is_a_copy(tmp_path: Path) -> None:
    """What a rule has read stays readable, and writing into it changes no file."""
    state = DiskState(writes=True)
    state.open(tmp_path, lambda: 1)
    state["c/0"] = torch.arange(10_000.0)
    read = state["c/0"]
    read[0] = 5.0
    assert float(state["c/0"][0]) == 0.0
    for file in tmp_path.glob("c/*"):
        file.unlink()
    assert torch.equal(read[1:], torch.arange(1.0, 10_000.0))


def test_looking_for_a_name_reads_no_file(tmp_path: Path) -> None:
    state = DiskState(writes=True)
    state.open(tmp_path, lambda: 1)
    state["c/0"] = torch.ones(1)
    for file in tmp_path.glob("c/*"):
        file.unlink()
    assert "c/0" in state
    assert "c/1" not in state
    assert list(state) == ["c/0"]
    assert state.nbytes == 4


@pytest.mark.parametrize(
    "name", ["c/1.5", "c x/1", "ü/☃", "a%2Fb/1", "a/b/3", "c/1.5.7", ".hidden/2", "c/x\ny", "C:/1"]
)
def test_odd_names(tmp_path: Path, name: str) -> None:
    state = DiskState(writes=True)
    state.open(tmp_path, lambda: 1)
    state["c/1"], state[name] = torch.zeros(1), torch.ones(1)
    state["c/1"] = torch.zeros(1)
    again = DiskState(writes=True)
    again.load_state_dict(state.state_dict())
    again.open(tmp_path, lambda: 2)
    assert torch.equal(again[name], torch.ones(1))
    assert again._count == 3
    assert all(path.is_relative_to(tmp_path) for path in tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("name", ["/12", "c/", "../12", "c/../../12", "/elsewhere/12", "c//1"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    state = DiskState(writes=True)
    state.open(tmp_path / "inside", lambda: 1)
    with pytest.raises(ValueError, match="client states are named name/client, got "):
        state[name] = torch.ones(1)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_states_of_clients_are_set_from_round_1_on(tmp_path: Path) -> None:
    """Before, the run's folder is not known; what is not a client's may be set. On resume, all can be read."""

    class Early(Totals):
        read: Tensor | None = None

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            assert "other" not in self.state
            self.read = self.state.get("sum/0")
            self.state["other"] = torch.ones(1)

    Early.__name__ = Early.__qualname__ = "Totals"
    _, rule = train(tmp_path, 2, rule=Early(), participation=CLIENTS)
    assert rule.read is None
    assert torch.equal(rule.state["other"], torch.ones(1))
    value = rule.state["sum/0"]
    del rule.state["other"]
    _, resumed = train(tmp_path, 2, rule=Totals(), resume=last(tmp_path), participation=CLIENTS)
    assert torch.equal(resumed.state["sum/0"], value)

    class TooEarly(Totals):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self.state["sum/0"] = torch.ones(SIZE)

    with pytest.raises(RuntimeError, match=r"^client states are set in server hooks, .*: sum/0 too early$"):
        train(tmp_path, 1, rule=TooEarly())
    train(tmp_path, 1, rule=TooEarly(), states="memory")


def test_a_checkpoint_before_the_first_round_keeps_what_was_loaded(tmp_path: Path) -> None:
    state = DiskState(writes=True)
    assert state.state_dict() == {}
    state.open(tmp_path, lambda: 1)
    state["c/0"], state["c"] = torch.ones(2), torch.zeros(1)
    saved = state.state_dict()
    again = DiskState(writes=True)
    again.load_state_dict(saved)
    assert again.state_dict() == saved
    assert torch.equal(again["c/0"], torch.ones(2))


# Several devices


def test_a_device_that_does_not_write_reads_what_the_other_has_written(tmp_path: Path) -> None:
    """It may be ahead of the writer by what one round sets: that it reads from memory, until the round is over."""
    round = [1]
    reader, writer = DiskState(writes=False), DiskState(writes=True)
    for state in (reader, writer):
        state.open(tmp_path, lambda: round[0])
    value = torch.ones(3)
    reader["c/0"] = value
    value.zero_()  # the updates' memory serves the next round
    assert not list(tmp_path.rglob("*"))
    assert torch.equal(reader["c/0"], torch.ones(3))
    writer["c/0"] = torch.ones(3)
    round[0] = 2
    reader["c/1"] = torch.zeros(3)
    assert not reader._unwritten.keys() & {"c/0"}
    assert torch.equal(reader["c/0"], torch.ones(3))
    writer["c/1"] = torch.zeros(3)
    assert reader.state_dict()["files"] == writer.state_dict()["files"]


RULE = """
import os, time
import torch
from fl_lightning import FederatedCallback

class Totals(FederatedCallback):
    def on_before_client_step(self, run):
        run.grads.add_(self.recall(f"sum/{run.client}", torch.zeros_like(run.grads)), alpha=0.1)

    def aggregate(self, orchestrator, cohort):
        if orchestrator.trainer.global_rank == 0 and orchestrator.trainer.world_size > 1:
            time.sleep(0.3)  # the others are ahead of the one that writes
        for client, delta in zip(cohort.clients, cohort.deltas):
            self.state[f"sum/{client}"] = self.recall(f"sum/{client}", torch.zeros_like(delta)) + delta
        return cohort

    def update(self, orchestrator, cohort, update):
        with open(f"{os.getpid()}.rank", "w") as file:
            file.write(str(getattr(self.state, "_writes", None)))
        return update + 0.01 * sum(self.state[f"sum/{client}"] for client in cohort.clients)

class Hold(FederatedCallback):  # lest the run end before it is killed
    def on_client_start(self, orchestrator, run):
        while os.path.exists("hold") and run.round > int(open("hold").read()):
            time.sleep(0.01)
"""


def test_two_devices_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes over gloo: one of them writes, both read in the same round and in the next."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(RULE)
    Path("tiny.yaml").write_text(TINY)
    settings = ["--trainer.callbacks+=own.Totals", "--model.client_states", "disk"]
    settings += ["--trainer.max_epochs", "4", "--data.participation", "3"]
    for devices in 1, 2:
        fit_on(devices, *settings, "--experiment", f"on{devices}")
    assert sorted(file.read_text() for file in tmp_path.glob("*.rank")) == ["False", "True", "True"]
    one, two = (tmp_path / "runs" / f"on{devices}" / "version_0" for devices in "12")
    assert_same(last(one), last(two))
    assert (one / "metrics.csv").read_text() == (two / "metrics.csv").read_text()
    assert files(one) == files(two)
    assert all(torch.equal(*(load_file(f / "states/Totals" / n)["value"] for f in (one, two))) for n in files(one))


# The command line, and kills


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """clients/state_bytes is the clients that took part, by 4 bytes, by P; a run goes on from ``last``, from another
    working directory too; testing an old checkpoint needs no file; a lost one is one line.
    """
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(RULE)
    Path("tiny.yaml").write_text(TINY)
    options = ["--trainer.callbacks+=own.Totals", "--model.client_states", "disk", "--data.participation", 1]
    fit(*options, "--trainer.max_epochs", 6, "--experiment", "whole")
    fit(*options, "--trainer.max_epochs", 3, "--experiment", "part")
    fit(*options, "--trainer.max_epochs", 6, "--experiment", "part", "--ckpt_path", "last")
    whole, part = tmp_path / "runs/whole/version_0", tmp_path / "runs/part/version_0"
    assert_same(last(whole), last(part))
    assert (whole / "metrics.csv").read_text() == (part / "metrics.csv").read_text()
    size = sum(value.numel() for value in torch.load(last(part))["state_dict"].values() if value.is_floating_point())
    kept = [row["clients/state_bytes"] / 4 / size for row in rows(part / "metrics.csv")]
    assert kept[0] == pytest.approx(1, rel=1e-4)
    assert all(later - earlier in (0, pytest.approx(1, rel=1e-4)) for earlier, later in pairwise(kept))

    for file in files(part):
        (part / "states/Totals" / file).unlink()
    tested = run("test", "--config", "tiny.yaml", *options, "--ckpt_path", part / "checkpoints/last.ckpt")
    assert tested.status == 0, tested.err
    refused = run("fit", "--config", "tiny.yaml", *options, "--trainer.max_epochs", 7, "--ckpt_path", last(part))
    assert refused.status == 2
    assert refused.err.startswith("fl-lightning: error: the checkpoint needs ")
    assert refused.err.count("\n") == 1
    refused = run(
        "fit", "--config", "tiny.yaml", *options, "--model.client_states", "memory", "--ckpt_path", last(part)
    )
    assert refused.err == (
        "fl-lightning: error: the checkpoint keeps the client states of Totals on disk: set model.client_states as it "
        "was\n"
    )


KILLED = """
import os, signal, sys
from pathlib import Path
import test_client_states
from fl_lightning.engine import client_states
from fl_lightning.runs.checkpoints import LastCheckpoint

folder, moment = Path(sys.argv[1]), sys.argv[2]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Killed(test_client_states.Totals):
    def aggregate(self, orchestrator, cohort):
        if moment == "before any" and cohort.round == 5:
            die()
        super().aggregate(orchestrator, cohort)
        if moment == "all set" and cohort.round == 5:
            die()
        return cohort

    def state_dict(self):
        saved = super().state_dict()
        if moment == "checkpoint" and self.state._round() == 6:
            die()
        return saved

Killed.__name__ = Killed.__qualname__ = "Totals"
save, saves = client_states.save_file, []

def save_file(tensors, path):
    saves.append(path)
    if moment == "half a file" and len(saves) == 14:
        Path(path).write_bytes(b"half")
        die()
    save(tensors, path)

client_states.save_file = save_file
test_client_states.train(folder, 8, LastCheckpoint(), rule=Killed())
"""


@pytest.mark.parametrize("moment", ["before any", "half a file", "all set", "checkpoint"])
def test_killed_in_round_5_at_the_worst_moments(tmp_path: Path, moment: str) -> None:
    """Before a state of the round is set; in the middle of the second one's file (the 14th); when all are set; when the
    checkpoint of the round has been collected, but is not written. The last checkpoint is that of round 4.
    """
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), str(tmp_path / "part"), moment]
    path = os.pathsep.join([*map(str, Path(__file__).parents[:2]), *sys.path])
    finished = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=HANG)
    assert finished.returncode == -signal.SIGKILL, finished.stderr.decode()
    assert torch.load(last(tmp_path / "part"), weights_only=True)["rounds_done"] == 4
    whole, kept = train(tmp_path / "whole", 8)
    resumed, again = train(tmp_path / "part", 8, resume=last(tmp_path / "part"))
    assert torch.equal(whole.params, resumed.params)
    assert equal(kept.state, again.state)


def test_killed_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times, each time gone on from ``last``; in the end as if nothing had happened, with states in memory."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(RULE)
    Path("tiny.yaml").write_text(TINY)
    options = ["--config", "tiny.yaml", "--trainer.callbacks+=own.Totals", "--trainer.callbacks+=own.Hold"]
    options += ["--data.participation", "3", "--trainer.max_epochs", "40", "--experiment", "killed"]
    command = [str(Path(sys.executable).with_name("fl-lightning")), "fit", *options, "--model.client_states", "disk"]
    metrics = Path("runs/killed/version_0/metrics.csv")
    for rounds in (4, 12, 20):
        Path("hold").write_text(str(rounds + 10))
        resume = ["--ckpt_path", "last"] if metrics.exists() else []
        running = subprocess.Popen([*command, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + HANG
        while not (metrics.exists() and len(metrics.read_text().splitlines()) > rounds):
            assert running.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(random.random() * 0.2)
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    Path("hold").unlink()
    fit(*options[2:], "--model.client_states", "disk", "--ckpt_path", "last")
    fit(*options[2:-1], "whole", "--model.client_states", "memory")
    whole = Path("runs/whole/version_0")
    assert_same(last(whole), last(metrics.parent))
    assert metrics.read_text() == (whole / "metrics.csv").read_text()
    kept = torch.load(last(whole), weights_only=True)["callbacks"]["Totals"]
    filed = torch.load(last(metrics.parent), weights_only=True)["callbacks"]["Totals"]["files"]
    root = metrics.parent / "states/Totals"
    assert equal(kept, {name: load_file(root / f"{file}.safetensors")["value"] for name, file in filed.items()})
