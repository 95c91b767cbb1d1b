"""Server: carries messages between this process and the sites, over NVIDIA FLARE."""

from __future__ import annotations

import contextlib
import io
import queue
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fl_lightning.errors import ConfigurationError, TrainingError
from fl_lightning.network.kits import admin_kit, check_installed, make_workspace, server_kit
from fl_lightning.network.processes import Child, logged
from fl_lightning.network.settings import server_settings, write_job

LOOK = 1.0  # seconds between two looks at the sites that are connected
FAILURES = 10  # looks in a row that may fail
SOCKET = "socket"  # its path has 108 characters at most
GATHER = 3.0  # seconds without a further site after which those that are there get their job
LOG_IN = 5.0  # seconds within which FLARE's server lets this process in, if it is there
PAUSE = 0.3  # seconds between two looks at an end that is near
GOODBYE = 10.0  # seconds within which the sites are told of the end


class FlareServer:
    """Carries messages between this process and the sites; see :class:`Carrier`.

    FLARE's server runs as a child of this process. The sites that are connected get a job, in whose process a relay
    passes messages on; a site that comes later, or again, gets a job of its own.

    Args:
        kit: the server's kit.
        folder: the folder for FLARE's logs and jobs.
        sites: the names of the sites that may take part; None for all those with a certificate.
        patience: seconds to wait for FLARE's server to answer.
    """

    def __init__(self, kit: Path, folder: Path, sites: Sequence[str] | None = None, patience: float = 60.0) -> None:
        check_installed()
        self._kit = server_kit(kit)
        self._admin = admin_kit(kit)
        self._folder = folder.resolve()
        self._expected = None if sites is None else set(sites)
        self._patience = patience
        self._arrived: queue.Queue[tuple[str, bytes | None] | Exception] = queue.Queue()
        self._lock = threading.Lock()
        self._tokens: dict[str, str] = {}  # of the sites that have a job, by name
        self._job_of: dict[str, str] = {}  # the job of each of these sites
        self._relays: dict[str, socket.socket] = {}  # by job
        self._here: set[str] = set()  # sites that have sent their first message, and are not gone
        self._silent: set[str] = set()  # sites that are gone, but go on with their job if they come again
        self._stopping = threading.Event()
        self._submitted: dict[str, str] = {}  # FLARE's names of jobs whose relay is not yet there
        self._new: dict[str, str] = {}  # tokens of the sites without a job, when they were last looked at
        self._since = 0.0
        self._count = 0

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # a copy of the orchestrator talks to the same sites

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            _check_free(self._kit.port)
            self._own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(str(self._own / SOCKET))
            self._listener.listen()
            stack.callback(self._listener.shutdown, socket.SHUT_RDWR)  # wakes the thread that accepts
            make_workspace(self._kit, self._folder, server_settings(self._own))
            stack.enter_context(logged(self._folder / "foreground.txt"))
            arguments = ["-m", str(self._folder), "-s", "fed_server.json", "--set", "secure_train=true"]
            arguments += [f"org={self._kit.organisation}", "config_folder=config"]
            log = self._folder / "output.txt"
            self._child = Child("nvflare.private.fed.app.server.server_train", arguments, log)
            stack.callback(self._child.end)
            self._session = self._log_in()
            stack.callback(self._session.close)
            stack.callback(self.stop)
            threading.Thread(target=self._accept, daemon=True).start()
            threading.Thread(target=self._watch, daemon=True).start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that have said that they are there, in order of name."""
        with self._lock:
            return sorted(self._here)

    def send(self, site: str, message: bytes) -> None:
        """Send a message to a site.

        Raises:
            OSError: the site is gone.
        """
        from fl_lightning.network.relay import put

        with self._lock:
            relay = self._relays.get(self._job_of.get(site, "")) if site in self._here else None
            if relay is None:
                raise ConnectionError(f"{site} is not connected")
            put(relay, {"site": site}, message)

    def receive(self, timeout: float | None) -> tuple[str, bytes | None]:
        """Wait for the next message of any site; None of a site that is gone, an empty one of one that is heard again.

        Raises:
            TimeoutError: no message came within ``timeout`` seconds.
            TrainingError: FLARE's server has ended.
        """
        try:
            arrived = self._arrived.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no message came within {timeout:g} s") from None
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def stop(self) -> None:
        """End the jobs, upon which the sites end, too."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        with self._lock:
            relays = list(self._relays.values())
            for relay in relays:
                with contextlib.suppress(OSError):
                    relay.shutdown(socket.SHUT_WR)
        limit = time.monotonic() + GOODBYE
        while time.monotonic() < limit and self._child.alive and self._relays:
            time.sleep(PAUSE)
        time.sleep(PAUSE)  # the last words are on their way

    def _log_in(self) -> Any:
        """Wait until FLARE's server answers."""
        from nvflare.fuel.flare_api.flare_api import Session

        limit = time.monotonic() + self._patience
        while True:
            if not self._child.alive:
                raise ConfigurationError(f"FLARE's server has ended at once: see {self._child.log}")
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    session = Session(self._admin.name, str(self._admin.folder), secure_mode=True)
                    try:
                        session.try_connect(LOG_IN)
                    except BaseException:  # Ctrl-C, too: threads of the session would keep this process alive
                        session.api.close()
                        raise
                return session
            except Exception as error:
                if time.monotonic() > limit:
                    raise ConfigurationError(
                        f"FLARE's server did not answer within {self._patience:g} s ({error}): see {self._child.log}"
                    ) from error
                time.sleep(PAUSE)

    def _accept(self) -> None:
        """Take in relays."""
        while not self._stopping.is_set():
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(end,), daemon=True).start()

    def _read(self, end: socket.socket) -> None:
        """Take in a relay's messages until the relay ends."""
        from fl_lightning.network.relay import get

        got = get(end)
        if got is None:
            return
        job = got[0]["job"]
        with self._lock:
            self._relays[job] = end
        while (got := get(end)) is not None:
            head, message = got
            site = head["site"]
            with self._lock:
                if self._job_of.get(site) != job:  # the site has a newer job
                    continue
                if "failed" in head:
                    self._lose(site)
                    continue
                self._here.add(site)
            self._arrived.put((site, message))
        with self._lock:
            del self._relays[job]
            for site in [site for site, own in self._job_of.items() if own == job]:
                self._lose(site)
                self._forget(site)
        end.close()

    def _lose(self, site: str) -> None:
        if site in self._here:
            self._here.discard(site)
            self._arrived.put((site, None))

    def _forget(self, site: str) -> None:
        """Forget a site's job, upon which the site gets another one if it is still connected."""
        del self._tokens[site], self._job_of[site]
        self._silent.discard(site)

    def _watch(self) -> None:
        """Look for sites that have come, gone or come again, until the end, or an error, which receive raises."""
        failures = 0
        while not self._stopping.wait(LOOK):
            try:
                self._look()
                failures = 0
            except Exception as error:  # FLARE's, of many kinds
                failures += 1
                if self._stopping.is_set():
                    return
                if not self._child.alive or isinstance(error, TrainingError) or failures >= FAILURES:
                    reason = error if self._child.alive else "FLARE's server has ended"
                    self._arrived.put(TrainingError(f"{reason}: see {self._child.log}"))
                    return

    def _look(self) -> None:
        """Say which sites are gone, and give a job to those without one."""
        tokens = self._connected()
        self._check_jobs(tokens)
        with self._lock:
            for site, token in self._tokens.items():
                if tokens.get(site) != token:
                    if site in self._here:
                        self._silent.add(site)
                    self._lose(site)
                elif site in self._silent:
                    self._silent.discard(site)
                    self._here.add(site)
                    self._arrived.put((site, b""))
            new = {site: token for site, token in tokens.items() if self._tokens.get(site) != token}
        if new != self._new:
            self._new, self._since = new, time.monotonic()
        everyone = self._expected is not None and self._expected <= set(tokens)
        if new and (everyone or time.monotonic() - self._since >= GATHER):
            self._submit(new)

    def _connected(self) -> dict[str, str]:
        """Return the tokens of the sites that are connected, by name; a site that comes again has a new one."""
        reply = self._session.do_command("check_status server")
        tables = [part["rows"] for part in reply["data"] if part["type"] == "table"]
        for head, *rows in tables:
            if "TOKEN" in head:
                found = {row[head.index("CLIENT")]: row[head.index("TOKEN")] for row in rows}
                return {site: token for site, token in found.items() if self._is_expected(site)}
        return {}  # FLARE leaves out an empty table

    def _is_expected(self, site: str) -> bool:
        return self._expected is None or site in self._expected

    def _submit(self, tokens: dict[str, str]) -> None:
        """Give a job to sites."""
        self._count += 1
        name = f"job-{self._count}"
        write_job(self._own / name, self._own / SOCKET, sorted(tokens))
        with self._lock:  # no relay is heard before
            self._submitted[name] = self._session.submit_job(str(self._own / name))
            self._silent -= set(tokens)
            self._tokens |= tokens
            self._job_of |= dict.fromkeys(tokens, name)

    def _check_jobs(self, tokens: Mapping[str, str]) -> None:
        """See whether FLARE has ended a job before the relay's first word; raise an error if no other job runs."""
        for name, identifier in list(self._submitted.items()):
            if name in self._relays:
                del self._submitted[name]
                continue
            status = str(self._session.get_job_status(identifier))
            if not status.startswith(("FAILED", "FINISHED", "ABANDONED")):
                continue
            del self._submitted[name]
            with self._lock:
                sites = [site for site, own in self._job_of.items() if own == name]
                left = [site for site in sites if tokens.get(site) != self._tokens[site]]
                for site in left:
                    self._forget(site)
            if left == sites:
                continue
            if not self._relays:
                raise TrainingError(f"FLARE has ended the job of {', '.join(sites)} ({status})")
            warnings.warn(
                f"FLARE has ended the job of {', '.join(sites)} ({status}): see {self._child.log}", stacklevel=1
            )


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigurationError(
                f"expected port {port} to be free, which the server's kit names: {error}"
            ) from error
