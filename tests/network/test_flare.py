"""Messages over NVIDIA FLARE: kits, one-line errors, and real processes over mutual TLS on this machine."""

import json
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from fl_lightning.errors import ConfigurationError
from fl_lightning.network import kits
from fl_lightning.network.kits import admin_kit, provision, server_kit, site_kit
from fl_lightning.network.server import FlareServer
from fl_lightning.network.settings import EXECUTOR, PERMISSIONS, site_settings, write_job
from fl_lightning.network.site import FlareSite

pytest.importorskip("nvflare")

SITES = ("anna", "berlin", "cork")
KEEPER = "fl_lightning.network.keeper"
ECHO = """
import sys
from pathlib import Path
from fl_lightning.errors import ConfigurationError
from fl_lightning.network.site import FlareSite

try:
    with FlareSite(Path(sys.argv[1]), Path(sys.argv[2]), patience=60.0) as site:
        site.send(f"welcome of {site.name}".encode())
        while (message := site.receive()) is not None:
            site.send(message[::-1])
except ConfigurationError as error:
    sys.exit(str(error))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    provision(SITES, "localhost", folder, free_port())
    return folder


@contextmanager
def started(made: Path, folder: Path, *names: str) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    """Start sites that send back each message, the last byte first."""
    processes = {name: start(made, folder, name) for name in names}
    try:
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def start(made: Path, folder: Path, name: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", ECHO, str(made / name), str(folder / name)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def flares() -> list[psutil.Process]:
    """This process's children that run FLARE's programs, and what they have started."""
    children = psutil.Process().children()
    return [child for keeper in children if KEEPER in keeper.cmdline() for child in (keeper, *keeper.children(True))]


def descendants(sites: Iterable["subprocess.Popen[str]"]) -> list[psutil.Process]:
    """All processes of a federation but this one."""
    own = [psutil.Process(site.pid) for site in sites]
    return [*flares(), *own, *(child for site in own for child in site.children(recursive=True))]


def receive_on(server: FlareServer) -> None:
    while True:
        server.receive(10)


def received(server: FlareServer, count: int) -> dict[str, bytes | None]:
    return dict(server.receive(60) for _ in range(count))


def test_kits_are_made_once_and_carry_the_sites_names(tmp_path: Path) -> None:
    """A site that is added later gets a kit of the same authority, and the first kits stay as they are."""
    provision(["anna"], "host.example.org", tmp_path, 8002)
    authority = (tmp_path / "anna/startup/rootCA.pem").read_bytes()
    key = (tmp_path / "anna/startup/client.key").read_bytes()
    provision(["anna", "berlin"], "host.example.org", tmp_path, 8002)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["anna", "authority", "berlin", "server"]
    assert (tmp_path / "anna/startup/client.key").read_bytes() == key
    assert (tmp_path / "berlin/startup/rootCA.pem").read_bytes() == authority
    site = site_kit(tmp_path / "berlin")
    assert (site.name, site.host, site.port) == ("berlin", "host.example.org", 8002)
    assert server_kit(tmp_path / "server").port == 8002
    assert admin_kit(tmp_path / "server").folder == tmp_path / "server/admin"
    assert not [path for path in tmp_path.rglob("*.key") if path.stat().st_mode & 0o077]
    assert not (tmp_path / "authority").stat().st_mode & 0o077


@pytest.mark.parametrize("names", [["server"], ["admin"], ["a", "a"], ["a b"], ["../x"], [""]])
def test_names_that_no_kit_can_have_are_refused(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="expected sites' names of letters"):
        provision(names, "localhost", tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


@pytest.mark.parametrize("port", [0, 99_999])
def test_a_port_that_no_machine_has_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(ConfigurationError, match="expected a port from 1 to 65535, got"):
        provision(["anna"], "localhost", tmp_path / "kits", port)
    assert not (tmp_path / "kits").exists()


def test_flare_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kits, "find_spec", lambda name: None)
    for make in (lambda: FlareSite(tmp_path, tmp_path), lambda: FlareServer(tmp_path, tmp_path)):
        with pytest.raises(ConfigurationError, match=r"pip install fl-lightning\[network\]"):
            make()


def test_a_folder_without_a_kit_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected a site's kit in"):
        FlareSite(made / "server", tmp_path)
    with pytest.raises(ConfigurationError, match="expected a server's kit in"):
        FlareServer(made / "anna", tmp_path)


def copied(kit: Path, to: Path) -> Path:
    """Copy the files of a kit by which it is known."""
    (to / "startup").mkdir(parents=True)
    for path in (kit / "startup").iterdir():
        (to / "startup" / path.name).write_bytes(path.read_bytes())
    return to


def test_a_kit_without_its_certificate_or_with_another_sites_is_refused(made: Path, tmp_path: Path) -> None:
    kit = copied(made / "anna", tmp_path / "anna")
    (kit / "startup/client.crt").write_bytes((made / "berlin/startup/client.crt").read_bytes())
    with pytest.raises(ConfigurationError, match=r"expected the certificate of site anna in .*, got that of berlin"):
        FlareSite(kit, tmp_path)
    for name, what in (("rootCA.pem", "authority's certificate"), ("client.key", "key"), ("client.crt", "certificate")):
        (kit / "startup" / name).unlink()
        with pytest.raises(ConfigurationError, match=rf"expected the {what} in \S*{name}, got no such file: copy the"):
            FlareSite(kit, tmp_path)


def test_a_server_without_the_kit_that_submits_jobs_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected the kit of an admin in"):
        FlareServer(copied(made / "server", tmp_path / "server"), tmp_path)


def test_a_port_that_is_taken_is_refused_before_a_process_starts(made: Path, tmp_path: Path) -> None:
    port = server_kit(made / "server").port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(ConfigurationError, match=f"expected port {port} to be free"):
            FlareServer(made / "server", tmp_path).__enter__()
    assert not flares()


def test_ctrl_c_while_flare_starts_ends_the_session(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Session:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.api = self

        def try_connect(self, timeout: float) -> None:
            raise KeyboardInterrupt

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr("nvflare.fuel.flare_api.flare_api.Session", Session)
    with pytest.raises(KeyboardInterrupt):
        FlareServer(made / "server", tmp_path).__enter__()
    assert closed
    assert not flares()


def test_a_server_that_does_not_answer_is_one_line(made: Path, tmp_path: Path) -> None:
    port = server_kit(made / "server").port
    with pytest.raises(ConfigurationError, match=f"no server answered at localhost:{port} within 0 s"):
        FlareSite(made / "anna", tmp_path, patience=0).__enter__()


def test_a_site_takes_no_other_class_and_no_code(tmp_path: Path) -> None:
    settings = site_settings(tmp_path)
    assert settings["resources.json"]["class_allow_list"] == [EXECUTOR]
    assert settings["resources.json"]["class_list_enforcement_mode"] == "enforce"
    for role in PERMISSIONS["permissions"].values():
        assert role["byoc"] == "none"
        assert role["shell_commands"] == "none"


def test_a_job_holds_no_code(tmp_path: Path) -> None:
    write_job(tmp_path / "job-1", tmp_path / "socket", ["anna"])
    assert all(path.suffix == ".json" for path in tmp_path.rglob("*") if path.is_file())


def test_messages_there_and_back_and_a_site_that_is_killed_and_comes_again(made: Path, tmp_path: Path) -> None:
    """Three sites over mutual TLS on loopback; nothing is left in the end."""
    with started(made, tmp_path, *SITES) as processes:
        with FlareServer(made / "server", tmp_path / "server", SITES) as server:
            assert received(server, 3) == {name: f"welcome of {name}".encode() for name in SITES}
            assert list(server.sites) == sorted(SITES)
            messages = {name: secrets.token_bytes(3_000_000) for name in SITES}
            for name, message in messages.items():
                server.send(name, message)
                server.send(name, b"" if name == "anna" else b"ab")  # a site gets one after another
            first = [server.receive(60) for _ in range(6)]
            for name, message in messages.items():
                answers = [answer for site, answer in first if site == name]
                assert answers == [message[::-1], b"" if name == "anna" else b"ba"]
            with pytest.raises(TimeoutError):
                server.receive(0.1)

            everyone = descendants(processes.values())
            for process in everyone:
                for connection in process.net_connections("inet"):
                    ends = [end.ip for end in (connection.laddr, connection.raddr) if end]
                    assert set(ends) <= {"127.0.0.1", "::1"}, (process.cmdline(), connection)

            processes["berlin"].send_signal(signal.SIGKILL)
            assert server.receive(30) == ("berlin", None)
            assert list(server.sites) == ["anna", "cork"]
            with pytest.raises(OSError, match="berlin is not connected"):
                server.send("berlin", b"lost")
            server.send("anna", b"12")
            assert server.receive(60) == ("anna", b"21")
            processes["berlin"].wait()
            processes["berlin"] = start(made, tmp_path, "berlin")
            assert server.receive(60) == ("berlin", b"welcome of berlin")
            server.send("berlin", b"34")
            assert server.receive(60) == ("berlin", b"43")
            everyone += descendants(processes.values())
        for process in processes.values():
            _, said = process.communicate(timeout=30)
            assert (process.returncode, said) == (0, "")
    _, left = psutil.wait_procs(everyone, 30)
    assert not left
    assert not [path for path in (tmp_path / "server").rglob("*.key") if not path.is_symlink()]


@pytest.mark.slow
def test_a_site_that_is_silent_is_told_and_goes_on_when_it_is_heard_again(made: Path, tmp_path: Path) -> None:
    with (
        started(made, tmp_path, "anna", "cork") as processes,
        FlareServer(made / "server", tmp_path / "server", ["anna", "cork"]) as server,
    ):
        received(server, 2)
        site = psutil.Process(processes["anna"].pid)
        all_of_it = [site, *site.children(recursive=True)]
        for process in all_of_it:
            process.suspend()
        assert server.receive(30) == ("anna", None)
        assert list(server.sites) == ["cork"]
        for process in all_of_it:
            process.resume()
        assert server.receive(30) == ("anna", b"")
        assert list(server.sites) == ["anna", "cork"]
        server.send("anna", b"12")
        assert server.receive(60) == ("anna", b"21")


@pytest.mark.slow
def test_sites_of_a_server_that_is_killed_end_with_one_line(made: Path, tmp_path: Path) -> None:
    with started(made, tmp_path, "anna") as processes:
        with FlareServer(made / "server", tmp_path / "server", ["anna"]) as server:
            received(server, 1)
            for process in flares():
                command = process.cmdline()
                if "nvflare.private.fed.app.server.server_train" in command and KEEPER not in command:
                    process.kill()
            with pytest.raises(ConfigurationError, match="FLARE's server has ended: see "):
                receive_on(server)
        _, said = processes["anna"].communicate(timeout=60)
    assert said.startswith("anna has lost the server (")
    assert said.count("\n") == 1


def ended(server: FlareServer, folder: Path) -> str:
    """Submit a job as the server's administrator can; return how it has ended."""
    session: Any = server._session
    identifier = session.submit_job(str(folder))
    status = ""
    while not status.startswith("FINISHED"):
        time.sleep(0.5)
        status = str(session.get_job_status(identifier))
    return status


def job(folder: Path, component: dict[str, Any]) -> Path:
    """Write a job that has one more component at the site anna."""
    write_job(folder, folder / "socket", ["anna"])
    path = folder / "site/config/config_fed_client.json"
    config = json.loads(path.read_text())
    config["components"].append({"id": "own", **component})
    path.write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_a_site_runs_no_code_class_or_command_that_a_server_names(made: Path, tmp_path: Path) -> None:
    """The site refuses four jobs, and serves the right one on."""
    mark = tmp_path / "mark"
    coded = job(tmp_path / "coded", {"path": "own.Own", "args": {}})
    (coded / "site/custom").mkdir()
    (coded / "site/custom/own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own:\n    pass\n")
    command = {"execution_mode": "external_process", "command": f"touch {mark}"}
    named = {
        "class": {"path": "nvflare.app_common.np.np_trainer.NPTrainer", "args": {}},
        "command": {"path": "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor", "args": command},
        "arguments": {"path": EXECUTOR, "args": command},
    }
    with started(made, tmp_path, "anna"), FlareServer(made / "server", tmp_path / "server", ["anna"]) as server:
        assert received(server, 1) == {"anna": b"welcome of anna"}
        assert ended(server, coded) == "FINISHED:FAILED_TO_RUN"
        assert "anna: NVFLARE_ERROR: BYOC not permitted" in (tmp_path / "server/output.txt").read_text()
        for name, component in named.items():
            assert ended(server, job(tmp_path / name, component)) == "FINISHED:ABNORMAL"
        said = (tmp_path / "anna/output.txt").read_text()
        for name in ("class", "command"):
            assert f"Component '{named[name]['path']}' at config path 'components.#1' is not in allow_list" in said
        assert "got an unexpected keyword argument 'execution_mode'" in said
        assert not mark.exists()
        server.send("anna", b"12")
        assert server.receive(60) == ("anna", b"21")


def refusal(kit: Path, folder: Path) -> str:
    with pytest.raises(ConfigurationError) as refused:
        FlareSite(kit, folder, patience=30).__enter__()
    return str(refused.value)


@pytest.mark.slow
def test_certificates_of_another_authority_and_of_another_site_are_refused(made: Path, tmp_path: Path) -> None:
    port = server_kit(made / "server").port
    provision(["anna"], "localhost", tmp_path / "other", port)
    mixed = copied(made / "anna", tmp_path / "mixed")  # trusts the server, but has the other authority's certificate
    for name in ("client.crt", "client.key"):
        (mixed / "startup" / name).write_bytes((tmp_path / "other/anna/startup" / name).read_bytes())
    with FlareServer(made / "server", tmp_path / "server") as server:
        where = f"the server at localhost:{port}"
        said = refusal(tmp_path / "other/anna", tmp_path / "a")
        assert said.startswith(f"expected {where} to have a certificate of the authority of")
        assert "\n" not in said
        said = refusal(mixed, tmp_path / "b")
        assert said.startswith(f"{where} refuses the certificate in {mixed}")
        assert "\n" not in said

        program = "nvflare.private.fed.app.client.client_train"  # as FLARE's own, without this package
        (tmp_path / "c").mkdir()
        shutil.copytree(made / "anna", tmp_path / "c/kit")
        command = [sys.executable, "-m", program, "-m", str(tmp_path / "c/kit"), "-s", "fed_client.json"]
        command += ["--set", "secure_train=true", "uid=berlin", "org=fl_lightning", "config_folder=config"]
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(command, timeout=8, capture_output=True)
        assert "authenticated as 'anna' but claimed endpoint 'berlin'" in (tmp_path / "server/output.txt").read_text()
        assert not server.sites
