"""Tensors that rules keep for their clients, in memory or on disk: the same values, and no file too many."""

import gc
import json
import os
import weakref
from pathlib import Path

import pytest
import torch
from lib import toy
from lib.totals import CLIENTS, SIZE, UPDATES, equal, files, last, train
from torch import Tensor

from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator, LocalRun
from fl_lightning.engine.states.disk import DiskState, client_bytes
from fl_lightning.errors import ConfigurationError
from fl_lightning.runs.folder.checkpoints import LastCheckpoint


@pytest.fixture
def state(tmp_path: Path) -> DiskState:
    """A state in its first round."""
    opened = DiskState(writes=True)
    opened.open(tmp_path, lambda: 1)
    return opened


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


def test_rules_without_states_of_clients_leave_no_folder(tmp_path: Path) -> None:
    class Shared(FederatedCallback):
        def on_round_end(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
            self.state["count"] = self.recall("count", torch.zeros(())) + 1

    _, rule = train(tmp_path, 2, LastCheckpoint(), rule=Shared())
    assert float(rule.state["count"]) == 2
    assert not (tmp_path / "states").exists()
    _, rule = train(tmp_path, 3, LastCheckpoint(), rule=Shared(), resume=last(tmp_path))
    assert float(rule.state["count"]) == 3


def test_recall_on_cuda_goes_through_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, and for a vector that says of itself that it is on CUDA: the same values in the vector's dtype."""

    class OnCuda(Tensor):
        is_cuda = True  # type: ignore[assignment]  # a property in torch

    pinned = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda value: pinned.append(value) or value.clone())
    rule, start = FederatedCallback(), torch.zeros(3, dtype=torch.float64)
    rule.state = {"sum/1": torch.tensor([0.1, 2.0, -3.0])}
    plain = rule.recall("sum/1", start)
    assert plain.tolist() == rule.state["sum/1"].double().tolist()
    assert not pinned
    assert rule.recall("sum/1", start.as_subclass(OnCuda)).as_subclass(Tensor).equal(plain)
    assert len(pinned) == 1
    assert rule.recall("sum/2", start) is start


# Files come and go


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


def test_a_file_of_the_last_checkpoint_stays_however_many_rounds_follow(tmp_path: Path) -> None:
    """Beside the present one, and the one that the last round left behind."""
    round, state, again = [1], DiskState(writes=True), DiskState(writes=True)
    state.open(tmp_path, lambda: round[0])
    state["c/7"] = torch.ones(2)
    saved = state.state_dict()
    for round[0] in (2, 3, 4):
        state["c/7"] = torch.full((2,), float(round[0]))
    assert sorted(path.name for path in tmp_path.glob("c/*")) == [f"7.{number}.safetensors" for number in (1, 3, 4)]
    again.load_state_dict(saved)
    again.open(tmp_path, lambda: 2)
    assert torch.equal(again["c/7"], torch.ones(2))


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


def test_what_is_deleted_is_gone(state: DiskState) -> None:
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


# One file


def test_tensors_come_back_as_they_were(state: DiskState, tmp_path: Path) -> None:
    """A row of a larger tensor, a transposed and an expanded one, no dimension, no element; other dtypes; a graph."""
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


def test_values_are_not_kept_in_memory(state: DiskState) -> None:
    """Neither what is set nor what is read; the file is mapped, so that reading a little costs a little."""
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


def test_a_tensor_outlives_its_file_and_is_a_copy(state: DiskState, tmp_path: Path) -> None:
    """What a rule has read stays readable, and writing into it changes no file."""
    state["c/0"] = torch.arange(10_000.0)
    read = state["c/0"]
    read[0] = 5.0
    assert float(state["c/0"][0]) == 0.0
    for file in tmp_path.glob("c/*"):
        file.unlink()
    assert torch.equal(read[1:], torch.arange(1.0, 10_000.0))


def test_looking_for_a_name_reads_no_file(state: DiskState, tmp_path: Path) -> None:
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
def test_odd_names(state: DiskState, tmp_path: Path, name: str) -> None:
    state["c/1"], state[name] = torch.zeros(1), torch.ones(1)
    state["c/1"] = torch.zeros(1)
    again = DiskState(writes=True)
    again.load_state_dict(state.state_dict())
    again.open(tmp_path, lambda: 2)
    assert torch.equal(again[name], torch.ones(1))
    assert again._number == 3
    assert all(path.is_relative_to(tmp_path) for path in tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("name", ["/12", "c/", "../12", "c/../../12", "/elsewhere/12", "c//1"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    state = DiskState(writes=True)
    state.open(tmp_path / "inside", lambda: 1)
    with pytest.raises(ConfigurationError, match="client states are named name/client, and kept in files of that name"):
        state[name] = torch.ones(1)
    assert not list(tmp_path.rglob("*.safetensors"))


class Keeps(FederatedCallback):
    """Keeps each client's model under a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_client_end(self, orchestrator: FederatedOrchestrator, run: LocalRun) -> None:
        self.keep(run, self.name, run.params)


@pytest.mark.parametrize("states", ["memory", "disk"])
@pytest.mark.parametrize("name", ["..", "a/.", "/own", "", "id", "a\0b", "n" * 300])
def test_a_name_that_no_file_can_have_is_refused_before_a_round_ends(tmp_path: Path, name: str, states: str) -> None:
    """On disk and in memory alike, in one line; "id" is a file of the folder's own. Linux's limit is 255 bytes."""
    orchestrator = FederatedOrchestrator(toy.Quadratic(), client_states=states)
    with pytest.raises(
        ConfigurationError, match=r"client states are named name/client, .*, got .*: give a name"
    ) as told:
        toy.trainer(Keeps(name), default_root_dir=tmp_path).fit(orchestrator, datamodule=toy.ToyData())
    assert "\n" not in str(told.value)
    assert orchestrator.rounds_done == 0


@pytest.mark.parametrize("name", ["a.b", "a/b", ".own", "own.", "α", "ids", "a/id", "n" * 200])
def test_every_other_name_is_the_same_in_memory_and_on_disk(tmp_path: Path, name: str) -> None:
    found = []
    for states in ("memory", "disk"):
        rule, orchestrator = Keeps(name), FederatedOrchestrator(toy.Quadratic(), client_states=states)
        toy.trainer(rule, default_root_dir=tmp_path, rounds=2).fit(orchestrator, datamodule=toy.ToyData())
        found.append({each: rule.state[each].tolist() for each in rule.state})
    assert found[0] == found[1]
    assert f"{name}/0" in found[0]


@pytest.mark.parametrize(
    "name", ["{victim}", "../victim.1.safetensors", "c/../../victim.1.safetensors", "victim.1.safetensors"]
)
@pytest.mark.parametrize("place", ["replaced", "names"])
def test_a_forged_checkpoint_reaches_no_file_outside_the_folder(tmp_path: Path, place: str, name: str) -> None:
    """It would be deleted in the next round, or read as a client's tensor."""
    victim = tmp_path / "victim.1.safetensors"
    state = DiskState(writes=True)
    state.open(tmp_path / "states", lambda: 1)
    state["c/1"] = torch.ones(1)
    saved = state.state_dict()
    name = name.format(victim=str(victim))
    saved[place] = [(0, name)] if place == "replaced" else json.dumps([name.removesuffix(".1.safetensors")])
    victim.write_bytes(b"mine")
    with pytest.raises(
        ConfigurationError, match="which is not a file of its client states: the checkpoint is damaged or forged"
    ):
        DiskState(writes=True).load_state_dict(saved)
    assert victim.read_bytes() == b"mine"


def test_states_of_clients_are_set_from_round_1_on() -> None:
    """Before, the run's folder is not known; what is not a client's may be set."""
    state = DiskState(writes=True)
    state["other"] = torch.ones(1)
    with pytest.raises(RuntimeError, match=r"^client states are set in server hooks, .*: sum/0 was set too early$"):
        state["sum/0"] = torch.ones(1)


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
    assert str({**reader.state_dict(), "id": ""}) == str({**writer.state_dict(), "id": ""})
