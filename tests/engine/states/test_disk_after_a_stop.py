"""Runs whose rules keep tensors for their clients lose nothing by a stop, a move of the run folder or a kill."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lib import toy
from lib.command import HANG
from lib.resumed import assert_same
from lib.totals import CLIENTS, DRAWN, SIZE, Often, Totals, equal, files, files_in, last, per_client, train
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, FederatedOrchestrator
from fl_lightning.engine.rules.callback import federated
from fl_lightning.engine.states.disk import DiskState
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

# Stop and resume


@pytest.mark.parametrize(
    ("states", "checkpoints"),
    [("memory", [LastCheckpoint]), ("disk", [LastCheckpoint, Often]), ("disk", [Often, LastCheckpoint])],
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


def test_an_older_checkpoint_serves_as_long_as_its_files_are_there(tmp_path: Path) -> None:
    """Going on from round 4 (of 5, saved every round) must not spoil what round 5's checkpoint names."""

    def each() -> ModelCheckpoint:
        return ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)

    whole, _ = train(tmp_path / "whole", 6)
    train(tmp_path, 5, each())
    fifth = files_in(tmp_path / "epoch=4.ckpt")
    before = {n: load_file(tmp_path / "states/Totals" / file) for n, file in fifth.items()}
    resumed, _ = train(tmp_path, 5, each(), resume=tmp_path / "epoch=3.ckpt")
    assert torch.equal(resumed.params, train(tmp_path / "five", 5)[0].params)
    for name, file in fifth.items():
        assert torch.equal(load_file(tmp_path / "states/Totals" / file)["value"], before[name]["value"])
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


DAMAGES = {
    "a flipped bit": lambda content: content[:-3] + bytes([content[-3] ^ 4]) + content[-2:],
    "a flipped bit in the header": lambda content: content[:11] + bytes([content[11] ^ 1]) + content[12:],
    "cut": lambda content: content[:-1],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"0",
}


DAMAGES = {
    "a flipped bit": lambda content: content[:-3] + bytes([content[-3] ^ 4]) + content[-2:],
    "a flipped bit in the header": lambda content: content[:11] + bytes([content[11] ^ 1]) + content[12:],
    "cut": lambda content: content[:-1],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"0",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    """When a run goes on, whether or not its client is drawn again: it is part of what the run has computed."""
    state, again = DiskState(writes=True), DiskState(writes=True)
    state.open(tmp_path, lambda: 1)
    state["sum/2"] = torch.ones(3)
    path = tmp_path / "sum/2.1.safetensors"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    again.load_state_dict(state.state_dict())
    with pytest.raises(ConfigurationError) as refused:
        again.open(tmp_path, lambda: 2)
    assert str(refused.value) == (
        f"the client state {path} is damaged: continue from another checkpoint of the run, or start the run again"
    )


@pytest.mark.parametrize("is_there", [True, False])
def test_a_state_that_is_damaged_during_the_run_stops_it(tmp_path: Path, is_there: bool) -> None:
    """Even if clients that fail are left out: this is no failure of the client, and would leave it out for ever."""

    class Damage(FederatedCallback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 2:
                path = next((tmp_path / "states/Totals/sum").glob("3.*"))
                path.write_bytes(b"damaged") if is_there else path.unlink()

    message = f"^the client state .*/sum/3.*safetensors is {'damaged' if is_there else 'gone'}: continue from another"
    with pytest.raises(ConfigurationError, match=message):
        train(tmp_path, 4, Damage(), LastCheckpoint(), participation=CLIENTS, policy="skip")
    assert torch.load(last(tmp_path), weights_only=True)["rounds_done"] == 2


def test_files_that_a_killed_run_left_go_when_the_run_goes_on(tmp_path: Path) -> None:
    """Those of round 4, which the checkpoint of round 3 does not know, and half a file. While no checkpoint of the
    resumed run is complete, they stay: a later checkpoint may need them.
    """
    train(tmp_path, 4)
    earlier = tmp_path / "earlier.ckpt"
    shutil.copy(last(tmp_path), earlier)
    train(tmp_path, 5, resume=last(tmp_path))
    known = {*files_in(earlier).values()}
    left = [file for file in files(tmp_path) if int(file.split(".")[1]) > 4 * DRAWN]
    assert len(left) == DRAWN
    half = tmp_path / "states/Totals/sum/1.77.safetensors"
    half.write_bytes(b"half")
    train(tmp_path, 5, resume=earlier)
    assert known | {*left} <= {*files(tmp_path)}
    whole, _ = train(tmp_path / "whole", 7)
    resumed, _ = train(tmp_path, 7, resume=last(tmp_path))
    assert torch.equal(whole.params, resumed.params)
    assert not half.exists()
    assert not {*left} & {*files(tmp_path)}
    saved = torch.load(last(tmp_path), weights_only=True)["callbacks"]["Totals"]
    assert {*files(tmp_path)} == {*files_in(last(tmp_path)).values(), *(file for _, file in saved["replaced"])}


@pytest.mark.parametrize(("before", "now", "where"), [("memory", "disk", "in memory"), ("disk", "memory", "on disk")])
def test_the_place_cannot_change_in_between(tmp_path: Path, before: str, now: str, where: str) -> None:
    train(tmp_path, 2, states=before)
    with pytest.raises(ConfigurationError) as refused:
        train(tmp_path, 3, states=now, resume=last(tmp_path))
    assert str(refused.value) == (
        f"the checkpoint keeps the client states of Totals {where}: set model.client_states to {before}"
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
    assert torch.equal(train(tmp_path / "e", 9, resume=last(tmp_path / "b"))[0].params, whole.params)  # without a's
    with pytest.raises(ConfigurationError, match=r"client states that are gone, such as .*/a/states/Totals/"):
        train(tmp_path / "d", 7, resume=last(tmp_path / "a"))


def test_a_run_that_is_alike_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    """Another run in the new folder has files of the same names, with other values."""
    train(tmp_path / "a", 4)

    class Doubled(Totals):
        def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
            super().aggregate(orchestrator, cohort.replace(deltas=2 * cohort.deltas))
            return cohort

    Doubled.__name__ = Doubled.__qualname__ = "Totals"
    train(tmp_path / "b", 4, rule=Doubled())
    other = {file: (tmp_path / "b/states/Totals" / file).read_bytes() for file in files(tmp_path / "b")}
    assert files(tmp_path / "a") == files(tmp_path / "b")
    with pytest.raises(ConfigurationError, match=r"^another run keeps its client states in .*: give each run a folder"):
        train(tmp_path / "b", 6, resume=last(tmp_path / "a"))
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
    with pytest.raises(ConfigurationError, match=r"^another run keeps its client states in .*: give each"):
        other["c/0"] = torch.zeros(1)
    assert torch.equal(one["c/0"], torch.ones(1))


def test_two_rules_of_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    class Outer:
        class Totals(Totals):
            pass

    class Both(FederatedCallback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            assert len({rule.state_key for rule in federated(trainer)}) == 3

    other = Outer.Totals()
    _, rule = train(tmp_path, 3, Both(), other, LastCheckpoint())
    assert equal(rule.state, other.state)
    assert len(list((tmp_path / "states").iterdir())) == 2


def test_a_test_after_the_fit_keeps_the_states() -> None:
    """They can be looked at and saved; the next fit begins without."""
    rule, trainer, orchestrator = Totals(), toy.trainer(), FederatedOrchestrator(toy.Linear(SIZE))
    rule.setup(trainer, orchestrator, "fit")
    rule.state["all"] = torch.ones(SIZE)
    rule.setup(trainer, orchestrator, "test")
    assert list(rule.state_dict()) == ["all"]
    rule.setup(trainer, orchestrator, "fit")
    assert not rule.state


# Several devices, the command line, and kills


KILLED = """
import os, signal, sys
from pathlib import Path
from lib import totals
from fl_lightning.engine.states import disk as client_states
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

folder, moment = Path(sys.argv[1]), sys.argv[2]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Killed(totals.Totals):
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
totals.train(folder, 8, LastCheckpoint(), rule=Killed())
"""


@pytest.mark.parametrize("moment", ["half a file", pytest.param("checkpoint", marks=pytest.mark.slow)])
def test_killed_in_round_5_at_the_worst_moments(tmp_path: Path, moment: str) -> None:
    """In the middle of the second state's file (the 14th); when all are set, and the checkpoint of the round has been
    collected, but is not written. The last checkpoint is that of round 4.
    """
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), str(tmp_path / "part"), moment]
    path = os.pathsep.join([*map(str, Path(__file__).parents[1:3]), *sys.path])
    finished = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=HANG)
    assert finished.returncode == -signal.SIGKILL, finished.stderr.decode()
    assert torch.load(last(tmp_path / "part"), weights_only=True)["rounds_done"] == 4
    whole, kept = train(tmp_path / "whole", 8)
    resumed, again = train(tmp_path / "part", 8, resume=last(tmp_path / "part"))
    assert torch.equal(whole.params, resumed.params)
    assert equal(kept.state, again.state)
