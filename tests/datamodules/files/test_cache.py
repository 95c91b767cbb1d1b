"""The cache of decoded images: whole, of these very files, or not there."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from lib.command import HANG
from torch import Tensor

from fl_lightning.datamodules.files.cache import ABANDONED, CACHE, cache_folder, cached

SHAPE = (2, 1, 2, 2)
IMAGES = torch.arange(8, dtype=torch.uint8).view(SHAPE)


class Source:
    """Two files, and how often they were decoded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.decoded = folder / "images", folder / "cache", 0
        self.folder.mkdir()
        self.files = [str(self.folder / name) for name in ("a.png", "b.png")]
        for file in self.files:
            Path(file).write_bytes(b"not really an image")

    def read(self, kind: str = "train", images: Tensor = IMAGES, cache: str | None = "") -> Tensor:
        def decode() -> Tensor:
            self.decoded += 1
            return images

        folder = str(self.cache) if cache == "" else cache
        return cached(folder, self.folder, kind, self.files, tuple(images.shape), decode)

    def entries(self) -> list[Path]:
        return sorted(self.cache.iterdir())


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


@pytest.mark.filterwarnings("error")
def test_decodes_once(source: Source) -> None:
    for _ in range(3):
        read = source.read()
        assert torch.equal(read, IMAGES)
        assert read.dtype == torch.uint8
    assert source.decoded == 1
    assert [path.suffix for path in source.entries()] == [".safetensors"]
    source.read(cache=None)
    assert source.decoded == 2
    assert len(source.entries()) == 1


def touched(file: Path) -> None:
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + 1))


def resized(file: Path) -> None:
    before = file.stat()
    file.write_bytes(b"another")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [touched, resized, lambda file: file.rename(file.with_name("c.png"))])
def test_changed_files_are_decoded_again(source: Source, change: Callable[[Path], Path | None]) -> None:
    """Nor is the old entry kept: one of 8 bytes is there before and after."""
    source.read()
    (old,) = source.entries()
    source.files[1] = str(change(Path(source.files[1])) or source.files[1])
    new = IMAGES.flip(0).contiguous()
    assert torch.equal(source.read(images=new), new)
    assert source.decoded == 2
    assert len(source.entries()) == 1
    assert source.entries() != [old]


def test_kinds_shapes_and_folders_are_told_apart(source: Source, tmp_path: Path) -> None:
    """Each is another entry, and no reason to delete the others."""
    (tmp_path / "other").mkdir()
    other = Source(tmp_path / "other")
    other.cache = source.cache
    for _ in range(2):
        source.read()
        source.read(kind="test")
        assert source.read(images=IMAGES.view(1, 2, 2, 2)).shape == (1, 2, 2, 2)
        other.read()
    assert (source.decoded, other.decoded) == (3, 1)
    assert len(source.entries()) == 4


def test_a_folder_has_one_entry_whatever_leads_to_it(source: Source, tmp_path: Path) -> None:
    source.read()
    (tmp_path / "link").symlink_to(source.folder)
    source.folder = tmp_path / "link"
    source.files = [str(source.folder / Path(file).name) for file in source.files]
    source.read()
    assert source.decoded == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: b"x" * 1000,
        lambda content: content.replace(b"[2,1,2,2]", b"[1,2,2,2]"),
        lambda content: content.replace(b'"images"', b'"imagex"'),  # a sound file of another tensor
    ],
)
def test_a_damaged_entry_is_made_again(source: Source, damage: Callable[[bytes], bytes]) -> None:
    source.read()
    (entry,) = source.entries()
    content = entry.read_bytes()
    entry.write_bytes(damage(content))
    with pytest.warns(UserWarning, match="is damaged: the file is deleted and made again") as caught:
        assert torch.equal(source.read(), IMAGES)
    assert len(caught) == 1
    assert entry.read_bytes() == content
    source.read()
    assert source.decoded == 2


def test_a_folder_that_cannot_be_written_stops_nothing(source: Source) -> None:
    """It is a file here: permissions would not stop a superuser."""
    source.cache.write_text("in the way")
    with pytest.warns(UserWarning, match=r"to keep decoded images in .*--data.cache DIR.*--data.cache null") as caught:
        assert torch.equal(source.read(), IMAGES)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert source.cache.read_text() == "in the way"


def test_a_full_disk_stops_nothing(source: Source) -> None:
    """Files may not grow beyond 4 bytes here; nothing half written stays."""
    source.cache.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    try:
        with pytest.warns(UserWarning, match="expected to keep decoded images in .*File too large"):
            assert torch.equal(source.read(), IMAGES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert source.entries() == []


def test_many_may_read_and_write_at_once(source: Source) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: source.read(), range(40)))
    assert all(torch.equal(images, IMAGES) for images in results)
    assert len(source.entries()) == 1


def test_the_default_follows_the_xdg_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder(CACHE) == Path("/somewhere/fl_lightning")
    assert cache_folder("~/mine") == Path.home() / "mine"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder(CACHE) == Path.home() / ".cache" / "fl_lightning"


WRITER = """
import os, sys, torch
from pathlib import Path
from fl_lightning.datamodules.files.cache import cached

folder, cache = Path(sys.argv[1]), sys.argv[2]
file, images = folder / "a.png", torch.full((64, 3, 256, 256), 7, dtype=torch.uint8)
for second in range(1, 100000):
    os.utime(file, (second, second))
    cached(cache, folder, "train", [str(file)], tuple(images.shape), lambda: images)
"""


@pytest.mark.slow  # another process imports torch
def test_kill_9_leaves_nothing_that_is_taken_for_an_entry(source: Source) -> None:
    """A process that writes entries of 12 MB without end is killed while one is half written."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(source.folder), str(source.cache)]) as running:
        deadline = time.monotonic() + HANG
        while True:
            assert running.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline
            if list(source.cache.glob("*.tmp/*")):
                running.send_signal(signal.SIGSTOP)
                if list(source.cache.glob("*.tmp/*")):  # not renamed just before
                    break
                running.send_signal(signal.SIGCONT)
        running.kill()
    left = list(source.cache.glob("*.tmp"))
    del source.files[1]
    images = torch.full((64, 3, 256, 256), 7, dtype=torch.uint8)
    assert torch.equal(source.read(images=images), images)
    assert source.decoded == 1
    assert list(source.cache.glob("*.tmp")) == left  # it could be someone else's who is still writing
    aged = time.time() - ABANDONED - 60
    for path in left:
        os.utime(path, (aged, aged))
    os.utime(source.files[0], (200_000, 200_000))
    source.read(images=images)
    assert source.decoded == 2
    assert len(source.entries()) == 1
