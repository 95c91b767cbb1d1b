"""Downloads through a local server: whole, or not at all."""

import contextlib
import gzip
import hashlib
import multiprocessing
import os
import re
import signal
import socket
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lib.command import run
from lib.image_files import write_cifar, write_idx, write_qmnist, write_tiny
from torchvision import datasets

import fl_lightning.datamodules.files.download as downloading
from fl_lightning.datamodules import (
    CIFAR10,
    CIFAR100,
    EMNIST,
    MNIST,
    QMNIST,
    FashionMNIST,
    TinyImageNet,
    VisionData,
)
from fl_lightning.datamodules.files.download import ABANDONED_S, download_whole
from fl_lightning.datamodules.images.tiny_imagenet import URL as TINY_IMAGENET
from fl_lightning.errors import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore:.*may be half unpacked")
FORK = multiprocessing.get_context("fork")  # its processes know the local server's addresses
PATIENCE_S = 60


class Handler(BaseHTTPRequestHandler):
    """Announces a whole file, sends a share of it, and waits until it is released; for a share of 0, waits first."""

    def __init__(self, server: "Server", *args: object) -> None:
        self.site = server
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:  # its name
        self.site.requests += 1
        content = self.site.files.get(self.path.strip("/"))
        if content is None:
            self.send_error(404)
            return
        if self.site.share == 0:
            self.site.released.wait(PATIENCE_S)
        share = self.site.share or 1.0
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):  # of a client that has left
            self.wfile.write(content[: int(len(content) * share)])
            self.wfile.flush()
        self.site.released.wait(PATIENCE_S)

    def log_message(self, *args: object) -> None:
        pass


class Server:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.share, self.requests = 1.0, 0
        self.released = threading.Event()
        self.released.set()
        self.url = ""

    def add(self, name: str, content: bytes) -> str:
        """Serve a file, and return its MD5 sum."""
        self.files[name] = content
        return hashlib.md5(content).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    site = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, site)) as http:  # type: ignore[arg-type]
        http.daemon_threads, http.block_on_close = True, False
        site.url = f"http://127.0.0.1:{http.server_port}/"
        threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
        yield site
        site.released.set()
        http.shutdown()


@pytest.fixture
def nowhere() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"


def local_mnist(server: Server, folder: Path, count: int = 5) -> Any:
    """Torchvision's MNIST with some images of noise in each set, from the local server."""
    noise, labels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), np.uint8), np.arange(count) % 10
    splits = ("train", "t10k")
    write_idx(folder / "made", dict.fromkeys(splits, noise), dict.fromkeys(splits, labels.astype(np.uint8)))
    names = [name for name, _ in datasets.MNIST.resources]
    resources = [(name, server.add(name, zipped(folder / "made" / Path(name).stem))) for name in names]
    return type("MNIST", (datasets.MNIST,), {"mirrors": [server.url], "resources": resources})


def local_qmnist(server: Server, folder: Path) -> Any:
    """Torchvision's QMNIST with two writers' images in each set."""
    write_qmnist(folder, {"train": [2100, 7], "test": [2599, 0]})
    resources: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for path in sorted((folder / "QMNIST" / "raw").iterdir()):
        address = server.url + f"{path.name}.gz"
        resources[path.name.split("-")[1]].append((address, server.add(f"{path.name}.gz", zipped(path))))
    return type("QMNIST", (datasets.QMNIST,), {"resources": resources})


def local_emnist(server: Server, folder: Path) -> Any:
    """Torchvision's EMNIST, whose archive holds an archive for each file, with three images of the balanced split."""
    pixels, labels = np.zeros((3, 28, 28), np.uint8), np.array([46, 0, 1], np.uint8)
    splits = [f"emnist-balanced-{part}" for part in ("train", "test")]
    write_idx(folder, dict.fromkeys(splits, pixels), dict.fromkeys(splits, labels))
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for path in sorted(folder.glob("*-ubyte")):
            archive.writestr(f"gzip/{path.name}.gz", zipped(path))
    md5 = server.add("gzip.zip", (folder / "gzip.zip").read_bytes())
    return type("EMNIST", (datasets.EMNIST,), {"url": server.url + "gzip.zip", "md5": md5})


def local_cifar10(server: Server, folder: Path) -> Any:
    """Torchvision's CIFAR-10 with two images in each file, from the local server."""
    source, made = datasets.CIFAR10, folder / "cifar-10-batches-py"
    write_cifar(made, source)
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in made.iterdir()}
    with tarfile.open(folder / source.filename, "w:gz") as archive:
        archive.add(made, made.name)
    tables = {
        "url": server.url + source.filename,
        "tgz_md5": server.add(source.filename, (folder / source.filename).read_bytes()),
        "train_list": [[name, sums[name]] for name, _ in source.train_list],
        "test_list": [["test_batch", sums["test_batch"]]],
        "meta": {**source.meta, "md5": sums["batches.meta"]},
    }
    return type("CIFAR10", (source,), tables)


def zipped(path: Path) -> bytes:
    return gzip.compress(path.read_bytes())


@pytest.fixture
def mnist(server: Server, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    source = local_mnist(server, tmp_path_factory.mktemp("mnist"), 400)  # more than is kept in memory
    monkeypatch.setattr(MNIST, "source", source)
    return source


def shown(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_a_download_that_breaks_off_is_no_data(tmp_path: Path, server: Server, mnist: Any) -> None:
    """Half of every file comes; then nothing is there, and the next attempt gets it all; the third asks for nothing."""
    server.share = 0.5
    data = MNIST(root=str(tmp_path / "data"))
    with pytest.raises(ConfigurationError, match=r"expected to download MNIST to .*data, got .*: check the network"):
        data.prepare_data()
    assert shown(tmp_path / "data") == []
    with pytest.raises(ConfigurationError, match="got neither"):
        data.setup("fit")
    server.share, server.requests = 1.0, 0
    data.prepare_data()
    assert len(data.load(train=True)[1]) == 400
    assert shown(tmp_path / "data") == ["MNIST"]
    assert shown(tmp_path / "data" / "MNIST" / "raw") == sorted(Path(name).stem for name in server.files)
    assert server.requests == 4
    MNIST(root=str(tmp_path / "data")).prepare_data()
    assert server.requests == 4


@pytest.mark.parametrize(
    ("data_class", "make", "labels", "requests"),
    [
        (CIFAR10, local_cifar10, [0, 9, 1, 9, 2, 9, 3, 9, 4, 9], 1),
        (EMNIST, local_emnist, [46, 0, 1], 1),
        (QMNIST, local_qmnist, [0, 1], 4),
    ],
)
def test_each_is_fetched_whole(
    data_class: type[VisionData],
    make: Callable[[Server, Path], Any],
    labels: list[int],
    requests: int,
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Damaged files are not replaced."""
    monkeypatch.setattr(data_class, "source", make(server, tmp_path / "made"))
    data = data_class(root=str(tmp_path / "data"))
    assert "downloads the data" in str(data.missing())
    data.prepare_data()
    assert data.missing() is None
    folder = tmp_path / "data" / data_class.folder
    assert shown(folder) == sorted(data.files())
    assert data.load(train=True)[1].tolist() == labels
    (folder / data.files()[0]).unlink()
    with pytest.raises(ConfigurationError, match=f"damaged or incomplete files: delete {folder} and fetch them again"):
        data.prepare_data()
    assert server.requests == requests


def test_tiny_imagenet_is_fetched_whole(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path / "made" / "tiny-imagenet-200")
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as archive:
        for path in sorted((tmp_path / "made").rglob("*")):
            archive.write(path, path.relative_to(tmp_path / "made"))
    md5 = server.add("tiny-imagenet-200.zip", (tmp_path / "made.zip").read_bytes())
    monkeypatch.setattr("fl_lightning.datamodules.images.tiny_imagenet.URL", server.url + "tiny-imagenet-200.zip")
    monkeypatch.setattr("fl_lightning.datamodules.images.tiny_imagenet.MD5", md5)
    data = TinyImageNet(root=str(tmp_path / "data"))
    server.share = 0.5
    with pytest.raises(ConfigurationError, match=r"expected to download TinyImageNet to .* not have the MD5 sum"):
        data.prepare_data()
    assert shown(tmp_path / "data") == []
    server.share = 1.0
    data.prepare_data()
    assert shown(tmp_path / "data") == ["tiny-imagenet-200"]
    assert sum(data.sizes.tolist()) == 200


def test_a_command_as_typed_fetches_its_data(
    tmp_path: Path, server: Server, mnist: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the data folder, once; standard error tells where to, and the files' sizes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FL_LIGHTNING_DATA", "sets")
    monkeypatch.setattr(downloading, "LINE_S", 0.0)
    first = run("data", "--config", "mnist_gh.yaml")
    assert first.status == 0, first.err
    assert f"downloading MNIST to {tmp_path / 'sets'}\n" in first.err
    assert "train-images-idx3-ubyte.gz: 313.7 kB of 313.7 kB\n" in first.err  # 400 x 784 bytes, and what gzip adds
    assert shown(tmp_path / "sets") == ["MNIST"]
    again = run("data", "--config", "mnist_gh.yaml")
    assert (again.status, again.err) == (0, "")
    assert server.requests == 4


@pytest.mark.parametrize("command", ["fit", "data"])
def test_without_a_network_there_is_one_line(
    command: str, tmp_path: Path, nowhere: str, mnist: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the address, the folder, the files and how to name another folder; nothing was begun."""
    monkeypatch.chdir(tmp_path)
    mnist.mirrors = [nowhere]
    result = run(command, "--config", "mnist_gh.yaml", "--data.root", "sets")
    assert result.status == 2
    message = result.err.splitlines()[-1]
    assert result.err.count("\n") == 2  # the other line says what is downloaded
    folder = tmp_path / "sets"
    assert f"expected to download MNIST to {folder}, got '{nowhere}train-images-idx3-ubyte.gz cannot" in message
    files = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
    layouts = (
        f"{folder / 'MNIST' / 'raw'} ({files}) or as an image folder {{train,test}}/<class>/* in {folder / 'MNIST'}"
    )
    assert f"put the files into {layouts} or {folder}, or name the folder that holds them" in message
    assert "--data.root DIR, or the variable FL_LIGHTNING_DATA" in message
    assert not Path("runs").exists()


def test_a_server_without_the_file_is_one_line(tmp_path: Path, server: Server, mnist: Any) -> None:
    server.files.clear()
    with pytest.raises(ConfigurationError, match=r"train-images-idx3-ubyte.gz has answered 404 Not Found"):
        MNIST(root=str(tmp_path)).prepare_data()


def test_a_mirror_helps_out(tmp_path: Path, nowhere: str, mnist: Any) -> None:
    mnist.mirrors = [nowhere, *mnist.mirrors]
    MNIST(root=str(tmp_path)).prepare_data()
    assert MNIST(root=str(tmp_path)).missing() is None


@pytest.mark.parametrize(
    ("share", "limit", "words"),
    [
        (0.0, "ANSWER_S", "train-images-idx3-ubyte.gz has not answered within 0 s"),
        (0.5, "STALL_S", "has sent nothing for 0 s"),
    ],
)
def test_a_server_that_stalls_is_left(
    share: float, limit: str, words: str, tmp_path: Path, server: Server, mnist: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the head of its answer, and amid a file."""
    monkeypatch.setattr(downloading, limit, 0.4)
    server.released.clear()
    server.share = share
    with pytest.raises(ConfigurationError, match=words):
        MNIST(root=str(tmp_path / "data")).prepare_data()
    assert shown(tmp_path / "data") == []


def prepare(root: Path, said: Path) -> None:
    with said.open("w") as file, contextlib.redirect_stderr(file):
        MNIST(root=str(root)).prepare_data()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_a_killed_process_leaves_is_no_data(tmp_path: Path, server: Server, mnist: Any) -> None:
    """A process is killed amid a file; what it left is gone after the next one, which gets all files."""
    server.share = 0.5
    server.released.clear()
    process = FORK.Process(target=prepare, args=(tmp_path / "data", tmp_path / "said"))
    process.start()
    wait_for(lambda: [path for path in (tmp_path / "data").rglob("*.gz") if path.stat().st_size])
    os.kill(int(process.pid or 0), signal.SIGKILL)
    process.join()
    assert [name[:7] for name in shown(tmp_path / "data")] == [".MNIST-", ".MNIST."]  # its folder and its lock
    data = MNIST(root=str(tmp_path / "data"))
    assert data.missing() is not None
    server.share, server.requests = 1.0, 0
    server.released.set()
    data.prepare_data()
    assert server.requests == 4
    assert shown(tmp_path / "data") == ["MNIST"]
    assert len(data.load(train=True)[1]) == 400


def test_of_two_processes_one_downloads(tmp_path: Path, server: Server, mnist: Any) -> None:
    """The other says that it waits, and finds the data."""
    server.share = 0
    server.released.clear()
    said = [tmp_path / name for name in ("first", "second")]
    first, second = (FORK.Process(target=prepare, args=(tmp_path / "data", file)) for file in said)
    first.start()
    wait_for(lambda: server.requests == 1)
    second.start()
    wait_for(lambda: said[1].is_file() and "waiting" in said[1].read_text())
    server.released.set()
    first.join(PATIENCE_S)
    second.join(PATIENCE_S)
    assert (first.exitcode, second.exitcode) == (0, 0)
    assert server.requests == 4
    assert said[1].read_text() == f"another process downloads MNIST to {tmp_path / 'data'}: waiting for it …\n"
    assert shown(tmp_path / "data") == ["MNIST"]


def put(folder: Path, name: str = "file") -> None:
    (folder / "set").mkdir()
    (folder / "set" / name).write_text(name)


def test_another_machine_may_be_faster(tmp_path: Path) -> None:
    """One on which the lock does not count."""

    def fetch(folder: Path) -> None:
        put(tmp_path, "theirs")
        put(folder, "ours")

    download_whole(tmp_path, "set", fetch, "Name", "")
    assert [path.name for path in (tmp_path / "set").rglob("*")] == ["theirs"]


@pytest.mark.parametrize("error", [RuntimeError("broken"), OSError("broken"), KeyboardInterrupt()])
def test_nothing_stays_of_a_failure(tmp_path: Path, error: BaseException) -> None:
    def fetch(folder: Path) -> None:
        put(folder)
        raise error

    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ConfigurationError):
        download_whole(tmp_path / "root", "set", fetch, "Name", "")
    assert shown(tmp_path / "root") == []


def test_what_another_machine_left_is_deleted_a_day_later(tmp_path: Path) -> None:
    fetch: Callable[[Path], None] = put
    for name, age in (("old", ABANDONED_S + 60), ("new", ABANDONED_S - 60)):
        (tmp_path / f".Name-{name}").mkdir()
        os.utime(tmp_path / f".Name-{name}", (time.time() - age,) * 2)
    download_whole(tmp_path, "set", fetch, "Name", "")
    assert shown(tmp_path) == [".Name-new", "set"]


def test_every_address_is_https() -> None:
    data = [cls() for cls in (MNIST, FashionMNIST, EMNIST, QMNIST, CIFAR10, CIFAR100)]
    addresses = [url for each in data for archive in each.archives() for url in archive.urls]
    assert len(addresses) == 4 + 4 + 1 + 4 + 1 + 1
    assert all(re.match(r"https://[\w.-]+/", address) for address in [*addresses, TINY_IMAGENET])


def test_files_with_another_sum_are_refused(tmp_path: Path, server: Server, mnist: Any) -> None:
    """Of the archive, and of the file in it where that is known."""
    mnist.sha256 = {"t10k-labels-idx1-ubyte": "0" * 64}
    with pytest.raises(ConfigurationError, match="t10k-labels-idx1-ubyte does not have the SHA-256 sum 000"):
        MNIST(root=str(tmp_path / "data")).prepare_data()
    server.files["train-labels-idx1-ubyte.gz"] = gzip.compress(b"others")
    with pytest.raises(ConfigurationError, match=f"{server.url}train-labels-idx1-ubyte.gz does not have the MD5 sum"):
        MNIST(root=str(tmp_path / "data")).prepare_data()
    assert shown(tmp_path / "data") == []
