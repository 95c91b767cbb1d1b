"""Downloads with a progress display, which appear complete or not at all."""

import hashlib
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from filelock import FileLock, Timeout
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from torchvision.datasets.utils import extract_archive  # type: ignore[import-untyped]  # torchvision ships no types

from fl_lightning.errors import ConfigurationError

ANSWER_S = 10.0  # seconds within which a server must answer, the look-up of its name included
STALL_S = 20.0  # seconds without a byte after which a download fails
LINE_S = 10.0  # seconds between lines about a download, if the output is not a terminal
ABANDONED_S = 24 * 3600.0  # seconds after which a temporary folder is taken to be abandoned
AGENT = "fl-lightning"
CHUNK = 2**16  # number of bytes read at once


class AnsweredError(OSError):
    """A server can be reached, and has answered with an error."""


def download_whole(root: Path, folder: str, fetch: Callable[[Path], object], name: str, by_hand: str) -> None:
    """Download ``root/folder`` by way of a temporary folder, so that an interrupted download is never taken for data.

    Of several processes that want the same data set, one downloads it and the others wait.

    Args:
        root: folder of the data, created if it does not exist.
        folder: part of the download to keep, as a path below the temporary folder and then below ``root``.
        fetch: function that downloads the data set into a given folder, checks and unpacks it.
        name: name of the data set.
        by_hand: end of the error message, which tells users how to provide the data without a download.

    Raises:
        ConfigurationError: the data set could not be downloaded, or not be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root, name):
            if (root / folder).is_dir() and any((root / folder).iterdir()):
                return  # another process has downloaded it meanwhile
            _sweep(root, name)
            _say(f"downloading {name} to {root}")
            with tempfile.TemporaryDirectory(prefix=_prefix(name), dir=root) as unfinished:
                fetch(Path(unfinished))
                (root / folder).parent.mkdir(parents=True, exist_ok=True)
                _move(Path(unfinished, folder), root / folder)
    except (RuntimeError, OSError, HTTPException) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(
            f"expected to download {name} to {root}, got {reason!r}: check the network and that the folder can be "
            f"written, or {by_hand}"
        ) from None


def download(urls: Sequence[str], path: Path, md5: str) -> None:
    """Download a file, with its progress on standard error.

    Args:
        urls: addresses that serve the file; each is tried if the ones before have failed.
        path: file to write; its folder is created if missing.
        md5: expected MD5 sum in hexadecimal digits.

    Raises:
        OSError: no server has answered within 10 s, or the server has sent nothing for 20 s.
        RuntimeError: the file has another MD5 sum.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, url in enumerate(urls, start=1):
        try:
            if _receive(url, path) != md5:
                raise RuntimeError(f"{url} does not have the MD5 sum {md5}")
            return
        except (RuntimeError, OSError, HTTPException):
            if number == len(urls):
                raise


def unpack(archive: Path) -> None:
    """Unpack an archive into its folder, and delete the archive."""
    extract_archive(str(archive), str(archive.parent))
    archive.unlink()


def _receive(url: str, path: Path) -> str:
    """Write what a server sends to a file, and return its MD5 sum."""
    digest, done = hashlib.md5(usedforsecurity=False), 0
    with answer(url) as response, path.open("wb") as file, _progress(path.name, response.length) as show:
        try:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                digest.update(chunk)
                show(done := done + len(chunk))
        except TimeoutError:
            raise TimeoutError(f"{url} has sent nothing for {STALL_S:.0f} s") from None
    return digest.hexdigest()


def answer(url: str) -> Any:
    """Send a request, and return the response as soon as its head has arrived; raise an OSError after 10 s.

    The request is sent in a thread, because the look-up of a name has no timeout, and takes a minute on some machines
    without a network.
    """
    answers: Queue[Any] = Queue()

    def ask() -> None:
        try:
            answers.put(urlopen(Request(url, headers={"User-Agent": AGENT}), timeout=STALL_S))
        except Exception as error:  # raised below, in the thread that asks
            answers.put(error)

    Thread(target=ask, daemon=True).start()
    try:
        response = answers.get(timeout=ANSWER_S)
    except Empty:
        raise TimeoutError(f"{url} has not answered within {ANSWER_S:.0f} s") from None
    if isinstance(response, HTTPError):
        raise AnsweredError(f"{url} has answered {response.code} {response.reason}")
    if isinstance(response, Exception):
        reason = getattr(response, "reason", response)
        raise OSError(f"{url} cannot be reached: {getattr(reason, 'strerror', None) or reason}")
    return response


@contextmanager
def _progress(name: str, size: int | None) -> Iterator[Callable[[int], object]]:
    """Show a download on standard error: a bar on a terminal, else a line every 10 s.

    Args:
        name: name of the file.
        size: size in bytes; None if unknown.

    Yields:
        A function that takes the number of bytes received so far.
    """
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())  # where FORCE_COLOR is set, too
    if console.is_terminal:
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(TextColumn("{task.description}"), *columns, console=console) as bar:
            task = bar.add_task(name, total=size)
            yield lambda done: bar.update(task, completed=done)
        return
    whole = decimal(size) if size else "unknown size"
    shown = time.monotonic()
    _say(f"{name}: {whole}")

    def show(done: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= LINE_S:
            shown = time.monotonic()
            _say(f"{name}: {decimal(done)} of {whole}")

    yield show


@contextmanager
def _alone(root: Path, name: str) -> Iterator[None]:
    """Wait until no other process downloads the data set to ``root``, and keep others from doing so."""
    lock = FileLock(root / f".{name}.lock")  # the system releases the lock of a killed process
    try:
        lock.acquire(blocking=False)
    except Timeout:
        _say(f"another process downloads {name} to {root}: waiting for it …")
        lock.acquire()
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)  # before the release: no lock on an unlinked file counts
        lock.release()


def _prefix(name: str) -> str:
    """Return the prefix of the names of this machine's temporary folders."""
    return f".{name}-{socket.gethostname()}-"


def _sweep(root: Path, name: str) -> None:
    """Delete the folders that killed processes left; other machines', which may not see locks, only after a day."""
    for old in root.glob(f".{name}-*"):
        if old.name.startswith(_prefix(name)) or time.time() - old.stat().st_mtime > ABANDONED_S:
            shutil.rmtree(old, ignore_errors=True)


def _move(new: Path, place: Path) -> None:
    try:
        new.rename(place)
    except OSError:
        if not any(place.iterdir()):  # otherwise another machine was faster, and its files are complete as well
            raise


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
