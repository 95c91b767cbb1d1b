"""Damaged files of a run: it goes on as if nothing had happened, or one line refuses it and nothing is written."""

import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.command import TINY, contents, fit, run
from lib.resumed import assert_same

from fl_lightning import ConfigurationError
from fl_lightning.files import SealedCheckpoints, is_damaged
from fl_lightning.runs.folder.checkpoints import rounds_of

SCAFFOLD = ("--config", "tiny.yaml", "--trainer.callbacks+=Scaffold", "--model.client_states", "disk")
GO_ON = ("fit", *SCAFFOLD, "--trainer.max_epochs", "3", "--ckpt_path", "last")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory: a run of two rounds of SCAFFOLD in runs/tiny, and the same run of three in runs/whole."""
    folder = tmp_path_factory.mktemp("whole")
    with chdir(folder):
        Path("tiny.yaml").write_text(TINY)
        fit(*SCAFFOLD[2:], "--trainer.max_epochs", 2, "--experiment", "tiny")
        fit(*SCAFFOLD[2:], "--trainer.max_epochs", 3, "--experiment", "whole")
    return folder


@pytest.fixture
def part(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run folder of the run of two rounds, below a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(whole / "tiny.yaml", "tiny.yaml")
    shutil.copytree(whole / "runs/tiny", "runs/tiny")
    return Path("runs/tiny/version_0")


def flip(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def extend(data: bytes, draw: random.Random) -> bytes:
    return data + draw.randbytes(draw.randrange(1, 100))


FILES = ("checkpoints/last.ckpt", "states/*/*/*.safetensors", "metrics.csv", "timings.csv", "environment.yaml")


def damage_somewhere(whole: Path, part: Path, pattern: str, how: Callable[[bytes, Any], bytes], seed: int) -> str:
    """Damage a file at a random place and go on; return "refused" or "sound", and fail for anything else."""
    draw = random.Random(seed)
    path = draw.choice(sorted(part.glob(pattern)))
    path.write_bytes(how(path.read_bytes(), draw))
    before = contents()
    done = run(*GO_ON)
    if done.status:
        assert re.fullmatch(r"fl-lightning: error: [^\n]+\n", done.err), done.err
        assert contents() == before
        return "refused"
    assert_same(whole / "runs/whole/version_0/checkpoints/last.ckpt", part / "checkpoints/last.ckpt")
    return "sound"


@pytest.mark.parametrize(("pattern", "how"), [*zip(FILES, (flip, cut, extend, cut, flip), strict=True)])
def test_a_file_damaged_at_a_random_place(whole: Path, part: Path, pattern: str, how: Any) -> None:
    damage_somewhere(whole, part, pattern, how, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", FILES)
def test_files_damaged_at_200_random_places(whole: Path, part: Path, pattern: str) -> None:
    outcomes = []
    for seed in range(200):
        shutil.rmtree("runs/tiny")
        shutil.copytree(whole / "runs/tiny", "runs/tiny")
        outcomes.append(damage_somewhere(whole, part, pattern, (flip, cut, extend)[seed % 3], seed))
    print(f"{pattern}: {outcomes.count('refused')} refused, {outcomes.count('sound')} sound")
    assert len(outcomes) == 200


def test_a_damaged_last_checkpoint_gives_way_to_a_sound_one(whole: Path, part: Path) -> None:
    """best.ckpt, a copy of that of round 2 here; the run ends as the whole one, and the line says what happened."""
    last = part / "checkpoints/last.ckpt"
    shutil.copy(last, part / "checkpoints/best.ckpt")
    last.write_bytes(last.read_bytes()[:1000])
    done = run(*GO_ON)
    assert done.status == 0, done.err
    expected = (
        f"ckpt_path: {last} cannot be read, it is damaged or not a checkpoint: use another one of the run's "
        f"checkpoints; the run goes on from {part}/checkpoints/best.ckpt, after round 2"
    )
    assert expected in done.warnings
    assert_same(whole / "runs/whole/version_0/checkpoints/last.ckpt", last)


def test_half_files_of_a_killed_run_are_removed(part: Path) -> None:
    """Even if the run never writes such a file again, as best.ckpt; the second time, no round is left."""
    halves = [part / "checkpoints/best.ckpt.part", part / "arrays/cosines_7.npz.part", part / "config.yaml.part"]
    for _ in range(2):
        for half in halves:
            half.write_bytes(b"half")
        assert run(*GO_ON).status == 0
        assert not [half for half in halves if half.exists()]


def set_to(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda checkpoint: checkpoint.__setitem__(name, value)


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "negative rounds": (set_to("rounds_done", -5), "is damaged: rounds_done must be a number of rounds, got -5"),
    "rounds of no number": (set_to("rounds_done", 2.0), "is damaged: rounds_done must be a number of rounds, got 2.0"),
    "too many rounds": (set_to("rounds_done", 10**9), "is damaged: rounds_done is 1000000000, and its epoch is 1"),
    "no loops": (lambda checkpoint: checkpoint.pop("loops"), "holds a model, but no loops, without which"),
    "no callbacks": (set_to("callbacks", {}), "holds a model, but no callbacks, without which"),
    "of a newer Lightning": (
        set_to("pytorch-lightning_version", "99.1.0"),
        "was saved by Lightning 99.1.0, newer than the installed",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_checkpoint_with_other_entries_is_refused(part: Path, edit: str) -> None:
    """Written again, so that the file itself is whole."""
    last = part / "checkpoints/last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    change, message = EDITS[edit]
    change(checkpoint)
    torch.save(checkpoint, last)
    with pytest.raises(ConfigurationError, match=re.escape(f"ckpt_path: {last} {message}")):
        rounds_of(last, resumes=True)


def test_a_forged_checkpoint_deletes_nothing(part: Path) -> None:
    """Lightning deletes the earlier best checkpoint, by the path that the checkpoint gives."""
    mine = Path("mine")
    mine.mkdir()
    last = part / "checkpoints/last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    for state in [state for state in checkpoint["callbacks"].values() if "best_model_path" in state]:
        state["best_model_path"] = str(last.parent.absolute() / "../../../../mine")
    torch.save(checkpoint, last)
    assert run(*GO_ON).status == 0
    assert mine.is_dir()


def test_a_model_that_is_not_finite_is_refused(part: Path) -> None:
    last = part / "checkpoints/last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    next(iter(checkpoint["state_dict"].values()))[0] = torch.nan
    torch.save(checkpoint, last)
    before = contents()
    done = run(*GO_ON)
    assert done.err.startswith("fl-lightning: error: training would start from a model with infinite or nan parameters")
    assert contents() == before


# Seals


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "new" / "sealed.ckpt"
    SealedCheckpoints().save_checkpoint({"value": torch.arange(100.0), "text": "a"}, path)
    yield path
    assert not list(tmp_path.rglob("*.part"))


def test_a_sealed_checkpoint_is_read_as_any_other(sealed: Path) -> None:
    assert not is_damaged(sealed)
    assert torch.equal(torch.load(sealed, weights_only=True, mmap=True)["value"], torch.arange(100.0))
    assert SealedCheckpoints().load_checkpoint(sealed)["text"] == "a"


def test_any_flipped_bit_breaks_the_seal(sealed: Path) -> None:
    """At many bytes; a flipped bit in the seal's own length leaves an archive without seal, whose parts are sound."""
    data = sealed.read_bytes()
    for at in (*range(0, len(data), 11), *range(len(data) - 70, len(data))):
        sealed.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert is_damaged(sealed) or at in range(len(data) - 66, len(data) - 64)
    sealed.write_bytes(data + b"0")
    assert is_damaged(sealed)
    sealed.write_bytes(data[:-1])
    assert is_damaged(sealed) or torch.equal(torch.load(sealed, weights_only=True)["value"], torch.arange(100.0))


def test_a_save_that_fails_leaves_the_checkpoint_before(sealed: Path) -> None:
    with pytest.raises(Exception, match="pickle"):
        SealedCheckpoints().save_checkpoint({"value": lambda: 0}, sealed)
    assert SealedCheckpoints().load_checkpoint(sealed)["text"] == "a"
