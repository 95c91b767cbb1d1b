"""Downloads through a local server: whole, or not at all."""

import contextlib
import gzip
import hashlib
import multiprocessing
import os
import pickle
import re
import signal
import socket
import struct
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
from command import run
from image_files import write_idx, write_tiny
from torchvision import datasets

import fl_lightning.datamodules.download as downloading
from fl_lightning.datamodules import CIFAR10, CIFAR100, EMNIST, MNIST, QMNIST, FashionMNIST, TinyImageNet, tiny_imagenet
from fl_lightning.datamodules.download import ABANDONED_S, download_whole
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


def local_mnist(server: Server, count: int = 5) -> Any:
    """Torchvision's MNIST with some images of noise in each set, from the local server."""
    resources, noise = [], np.random.default_rng(0)
    for split in ("train", "t10k"):
        images = struct.pack(">4i", 0x0803, count, 28, 28) + noise.bytes(784 * count)
        labels = struct.pack(">2i", 0x0801, count) + bytes(k % 10 for k in range(count))
        for name, content in ((f"{split}-images-idx3-ubyte.gz", images), (f"{split}-labels-idx1-ubyte.gz", labels)):
            resources.append((name, server.add(name, gzip.compress(content))))
    return type("MNIST", (datasets.MNIST,), {"mirrors": [server.url], "resources": resources})


def local_cifar10(server: Server, folder: Path) -> Any:
    """Torchvision's CIFAR-10 with four images in each file, labelled 0 to 3, from the local server."""
    sums = {}
    (folder / "cifar-10-batches-py").mkdir(parents=True)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta"):
        batch = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 3], "label_names": list("abcdefghij")}
        content = pickle.dumps(batch)
        (folder / "cifar-10-batches-py" / name).write_bytes(content)
        sums[name] = hashlib.md5(content).hexdigest()
    with tarfile.open(folder / "made.tar.gz", "w:gz") as archive:
        archive.add(folder / "cifar-10-batches-py", "cifar-10-batches-py")
    md5 = server.add("cifar-10-python.tar.gz", (folder / "made.tar.gz").read_bytes())
    tables = {
        "url": server.url + "cifar-10-python.tar.gz",
        "tgz_md5": md5,
        "train_list": [[f"data_batch_{n}", sums[f"data_batch_{n}"]] for n in range(1, 6)],
        "test_list": [["test_batch", sums["test_batch"]]],
        "meta": {**datasets.CIFAR10.meta, "md5": sums["batches.meta"]},
    }
    return type("CIFAR10", (datasets.CIFAR10,), tables)


def local_emnist(server: Server, folder: Path) -> Any:
    """Torchvision's EMNIST, whose archive holds an archive for each file, with three images of the balanced split."""
    pixels, labels = np.zeros((3, 28, 28), np.uint8), np.array([46, 0, 1], np.uint8)
    splits = [f"emnist-balanced-{part}" for part in ("train", "test")]
    write_idx(folder, dict.fromkeys(splits, pixels), dict.fromkeys(splits, labels))
    with zipfile.ZipFile(folder / "made.zip", "w") as archive:
        for path in sorted(folder.glob("*-ubyte")):
            archive.writestr(f"gzip/{path.name}.gz", gzip.compress(path.read_bytes()))
    md5 = server.add("gzip.zip", (folder / "made.zip").read_bytes())
    return type("EMNIST", (datasets.EMNIST,), {"url": server.url + "gzip.zip", "md5": md5})


def local_qmnist(server: Server) -> Any:
    """Torchvision's QMNIST with two images in each set; a label's third number is the writer's."""
    resources = {}
    for split in ("train", "test"):
        images = struct.pack(">4i", 0x0803, 2, 28, 28) + bytes(784 * 2)
        labels = struct.pack(">3i", 0x0C02, 2, 8) + np.array([[7, 4, 2100, 0, 37, 1, 0, 0]] * 2, ">i4").tobytes()
        names = (f"qmnist-{split}-images-idx3-ubyte.gz", f"qmnist-{split}-labels-idx2-int.gz")
        sums = [server.add(name, gzip.compress(content)) for name, content in zip(names, (images, labels), strict=True)]
        resources[split] = [(server.url + name, md5) for name, md5 in zip(names, sums, strict=True)]
    return type("QMNIST", (datasets.QMNIST,), {"resources": resources})


@pytest.fixture
def mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    source = local_mnist(server)
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
    assert data.load(train=True)[1].tolist() == list(range(5))
    assert shown(tmp_path / "data") == ["MNIST"]
    assert shown(tmp_path / "data" / "MNIST" / "raw") == sorted(Path(name).stem for name in server.files)
    assert server.requests == 4
    MNIST(root=str(tmp_path / "data")).prepare_data()
    assert server.requests == 4


def test_cifar_is_fetched_whole(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CIFAR10, "source", local_cifar10(server, tmp_path / "made"))
    data = CIFAR10(root=str(tmp_path / "data"), num_clients=2)
    assert "downloads the data" in str(data.missing())
    data.prepare_data()
    assert data.missing() is None
    assert shown(tmp_path / "data") == ["cifar-10-batches-py"]
    assert data.load(train=True)[1].tolist() == [0, 1, 2, 3] * 5
    (tmp_path / "data" / "cifar-10-batches-py" / "batches.meta").unlink()
    assert "damaged or incomplete" in str(data.missing())
    with pytest.raises(ConfigurationError, match=r"delete .*cifar-10-batches-py and fetch them again"):
        data.prepare_data()
    assert server.requests == 1


def test_emnist_is_fetched_whole(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EMNIST, "source", local_emnist(server, tmp_path / "made"))
    data = EMNIST(root=str(tmp_path / "data"))
    data.prepare_data()
    assert data.load(train=True)[1].tolist() == [46, 0, 1]
    assert shown(tmp_path / "data" / "EMNIST" / "raw") == sorted(data.files())
    assert EMNIST("letters", root=str(tmp_path / "data")).missing() is not None  # the archive here has one split


def test_qmnist_is_fetched_whole(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QMNIST, "source", local_qmnist(server))
    data = QMNIST(root=str(tmp_path / "data"))
    data.prepare_data()
    assert data.load(train=False)[1].tolist() == [7, 7]
    assert shown(tmp_path / "data" / "QMNIST" / "raw") == sorted(data.files())


def test_tiny_imagenet_is_fetched_whole(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path / "made" / "tiny-imagenet-200")
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as archive:
        for path in sorted((tmp_path / "made").rglob("*")):
            archive.write(path, path.relative_to(tmp_path / "made"))
    md5 = server.add("tiny-imagenet-200.zip", (tmp_path / "made.zip").read_bytes())
    monkeypatch.setattr("fl_lightning.datamodules.tiny_imagenet.URL", server.url + "tiny-imagenet-200.zip")
    monkeypatch.setattr("fl_lightning.datamodules.tiny_imagenet.MD5", md5)
    data = TinyImageNet(root=str(tmp_path / "data"))
    server.share = 0.5
    with pytest.raises(ConfigurationError, match=r"expected to download TinyImageNet to .* not have the MD5 sum"):
        data.prepare_data()
    assert shown(tmp_path / "data") == []
    server.share = 1.0
    data.prepare_data()
    assert shown(tmp_path / "data") == ["tiny-imagenet-200"]
    assert sum(data.sizes.tolist()) == 200


def test_a_run_as_typed_fetches_its_data(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Into the data folder, once; standard error tells where to, and the files' sizes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FL_LIGHTNING_DATA", "sets")
    monkeypatch.setattr(MNIST, "source", local_mnist(server, 400))
    monkeypatch.setattr(downloading, "LINE_S", 0.0)
    short = ("--trainer.max_epochs", 1, "--trainer.limit_val_batches", 1)
    first = run("fit", "--config", "mnist_gh.yaml", *short)
    assert first.status == 0, first.err
    assert f"downloading MNIST to {tmp_path / 'sets'}\n" in first.err
    assert "train-images-idx3-ubyte.gz: 313.7 kB of 313.7 kB\n" in first.err  # 400 x 784 bytes, and what gzip adds
    assert shown(tmp_path) == ["runs", "sets"]
    assert shown(tmp_path / "sets") == ["MNIST"]
    again = run("fit", "--config", "mnist_gh.yaml", *short)
    assert (again.status, again.err) == (0, "")
    assert server.requests == 4


@pytest.mark.parametrize("command", ["fit", "test", "data"])
def test_without_a_network_there_is_one_line(
    command: str, tmp_path: Path, nowhere: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the address, the folder, the files and how to name another folder; nothing was begun."""
    monkeypatch.chdir(tmp_path)
    source = local_mnist(server)
    source.mirrors = [nowhere]
    monkeypatch.setattr(MNIST, "source", source)
    began = time.monotonic()
    result = run(command, "--config", "mnist_gh.yaml", "--data.root", "sets")
    assert time.monotonic() - began < PATIENCE_S
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


def test_what_a_killed_process_leaves_is_no_data(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is killed amid a file; what it left is gone after the next one, which gets all files."""
    monkeypatch.setattr(MNIST, "source", local_mnist(server, 400))  # more than is kept in memory
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
    assert all(re.match(r"https://[\w.-]+/", address) for address in [*addresses, tiny_imagenet.URL])


def test_files_with_another_sum_are_refused(tmp_path: Path, server: Server, mnist: Any) -> None:
    """Of the archive, and of the file in it where that is known."""
    mnist.sha256 = {"t10k-labels-idx1-ubyte": "0" * 64}
    with pytest.raises(ConfigurationError, match="t10k-labels-idx1-ubyte does not have the SHA-256 sum 000"):
        MNIST(root=str(tmp_path / "data")).prepare_data()
    server.files["train-labels-idx1-ubyte.gz"] = gzip.compress(b"others")
    with pytest.raises(ConfigurationError, match=f"{server.url}train-labels-idx1-ubyte.gz does not have the MD5 sum"):
        MNIST(root=str(tmp_path / "data")).prepare_data()
    assert shown(tmp_path / "data") == []
