"""Downloads through a local server: whole, or not at all."""

import gzip
import hashlib
import os
import re
import struct
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from image_files import write_tiny
from torchvision import datasets

from fl_lightning.datamodules import CIFAR10, CIFAR100, EMNIST, MNIST, QMNIST, FashionMNIST, TinyImageNet, tiny_imagenet
from fl_lightning.datamodules.download import ABANDONED, download_whole
from fl_lightning.errors import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore:.*may be half unpacked")


class Handler(BaseHTTPRequestHandler):
    """Announces a whole file and sends a share of it."""

    def __init__(self, server: "Server", *args: object) -> None:
        self.site = server
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:  # its name
        content = self.site.files[self.path.strip("/")]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.headers.get("Method") != "HEAD":  # how torchvision asks for redirections
            self.site.requests += 1
            self.wfile.write(content[: int(len(content) * self.site.share)])

    def log_message(self, *args: object) -> None:
        pass


class Server:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.share, self.requests = 1.0, 0


@pytest.fixture
def server() -> Iterator[Server]:
    site = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, site)) as http:  # type: ignore[arg-type]
        site.url = f"http://127.0.0.1:{http.server_port}/"  # type: ignore[attr-defined]
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield site
        http.shutdown()


def local_mnist(server: Server) -> type[datasets.MNIST]:
    """Torchvision's MNIST with five blank images in each set, from the local server."""
    for split in ("train", "t10k"):
        server.files[f"{split}-images-idx3-ubyte.gz"] = gzip.compress(
            struct.pack(">4i", 0x0803, 5, 28, 28) + bytes(3920)
        )
        server.files[f"{split}-labels-idx1-ubyte.gz"] = gzip.compress(struct.pack(">2i", 0x0801, 5) + bytes(range(5)))
    resources = [(name, hashlib.md5(content).hexdigest()) for name, content in server.files.items()]
    return type("MNIST", (datasets.MNIST,), {"mirrors": [server.url], "resources": resources})  # type: ignore[attr-defined]


def test_a_download_that_breaks_off_is_no_data(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of every file comes; then nothing is there, and the next attempt gets it all; the third asks for nothing."""
    monkeypatch.setattr(MNIST, "source", local_mnist(server))
    server.share = 0.5
    data = MNIST(root=str(tmp_path / "data"), download=True)
    with pytest.raises(ConfigurationError, match=r"expected to download MNIST to .*data, got .*: check the network"):
        data.prepare_data()
    assert list((tmp_path / "data").iterdir()) == []
    with pytest.raises(ConfigurationError, match="got neither"):
        data.setup("fit")
    server.share, server.requests = 1.0, 0
    data.prepare_data()
    assert data.load(train=True)[1].tolist() == list(range(5))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["MNIST"]
    assert server.requests == 4
    MNIST(root=str(tmp_path / "data"), download=True).prepare_data()
    assert server.requests == 4


def test_tiny_imagenet_is_fetched_whole(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path / "made" / "tiny-imagenet-200")
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as archive:
        for path in sorted((tmp_path / "made").rglob("*")):
            archive.write(path, path.relative_to(tmp_path / "made"))
    content = (tmp_path / "made.zip").read_bytes()
    server.files["tiny-imagenet-200.zip"] = content
    monkeypatch.setattr("fl_lightning.datamodules.tiny_imagenet.URL", server.url + "tiny-imagenet-200.zip")  # type: ignore[attr-defined]
    monkeypatch.setattr("fl_lightning.datamodules.tiny_imagenet.MD5", hashlib.md5(content).hexdigest())
    data = TinyImageNet(root=str(tmp_path / "data"), download=True)
    server.share = 0.5
    with pytest.raises(ConfigurationError, match=r"expected to download TinyImageNet to .*corrupted"):
        data.prepare_data()
    assert list((tmp_path / "data").iterdir()) == []
    server.share = 1.0
    data.prepare_data()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["tiny-imagenet-200"]
    assert sum(data.sizes.tolist()) == 200


def put(folder: Path, name: str = "file") -> None:
    (folder / "set").mkdir()
    (folder / "set" / name).write_text(name)


def test_another_process_may_be_faster(tmp_path: Path) -> None:
    def fetch(folder: Path) -> None:
        put(tmp_path, "theirs")
        put(folder, "ours")

    download_whole(tmp_path, "set", fetch, "Name")
    assert [path.name for path in tmp_path.rglob("*")] == ["set", "theirs"]


@pytest.mark.parametrize("error", [RuntimeError("broken"), OSError("broken"), KeyboardInterrupt()])
def test_nothing_stays_of_a_failure(tmp_path: Path, error: BaseException) -> None:
    def fetch(folder: Path) -> None:
        put(folder)
        raise error

    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ConfigurationError):
        download_whole(tmp_path / "root", "set", fetch, "Name")
    assert list((tmp_path / "root").iterdir()) == []


def test_what_a_killed_process_left_is_deleted_a_day_later(tmp_path: Path) -> None:
    fetch: Callable[[Path], None] = put
    for name, age in (("old", ABANDONED + 60), ("new", ABANDONED - 60)):
        (tmp_path / f".Name-{name}").mkdir()
        os.utime(tmp_path / f".Name-{name}", (time.time() - age,) * 2)
    download_whole(tmp_path, "set", fetch, "Name")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".Name-new", "set"]


def test_every_address_is_https() -> None:
    sources = [cls.source for cls in (MNIST, FashionMNIST, EMNIST, QMNIST, CIFAR10, CIFAR100)]
    told = [
        getattr(source, "url", None) or getattr(source, "mirrors", None)
        for source in sources
        if source is not QMNIST.source
    ]
    addresses = re.findall(r"https?://[^'\"]+", str([*told, QMNIST.source.subsets, QMNIST.source.resources]))
    assert len(addresses) > 5
    assert all(address.startswith("https://") for address in [*addresses, tiny_imagenet.URL])


def test_files_with_another_sum_are_refused(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    source: Any = local_mnist(server)
    monkeypatch.setattr(MNIST, "source", source)
    source.sha256 = {"t10k-labels-idx1-ubyte": "0" * 64}
    with pytest.raises(ConfigurationError, match="t10k-labels-idx1-ubyte does not have the SHA-256 sum 000"):
        MNIST(root=str(tmp_path / "data"), download=True).prepare_data()
    assert not (tmp_path / "data" / "MNIST").exists()
