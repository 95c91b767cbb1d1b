"""Site: carries messages between this process and the server, over NVIDIA FLARE."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from fl_lightning.errors import ConfigurationError, TrainingError
from fl_lightning.network.kits import check_installed, make_workspace, site_kit
from fl_lightning.network.processes import Child, logged
from fl_lightning.network.settings import HEARTBEAT, attach_profile, site_settings

ANSWER = 0.3  # seconds within which the server refuses a certificate
REFUSALS = 3  # in a row, after which the certificate is to blame
ALONE = 30.0  # seconds without a connection after which the server is gone
LOOK = 1.0  # seconds between two looks at FLARE's process while this one waits for the job


class FlareSite:
    """Carries messages between this process and the server; see :class:`Connection`.

    FLARE's client runs as a child of this process. It takes no job but one that hands messages to this process, and
    none that brings code.

    Args:
        kit: the site's kit.
        folder: the folder for FLARE's logs.
        patience: seconds to wait for the server to answer.
    """

    def __init__(self, kit: Path, folder: Path, patience: float = 600.0) -> None:
        check_installed()
        self._kit = site_kit(kit)
        self._folder = folder.resolve()
        self._patience = patience
        self._left = threading.Event()
        self._lost = "the job has ended without a farewell"

    @property
    def name(self) -> str:
        """The site's name, from its certificate."""
        return self._kit.name

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._reach()
            meeting = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))
            make_workspace(self._kit, self._folder, site_settings(meeting))
            stack.enter_context(logged(self._folder / "foreground.txt"))
            arguments = ["-m", str(self._folder), "-s", "fed_client.json", "--set", "secure_train=true"]
            arguments += [f"uid={self.name}", f"org={self._kit.organisation}", "config_folder=config"]
            arguments += [f"heart_beat_interval={HEARTBEAT}"]
            log = self._folder / "output.txt"
            self._child = Child("nvflare.private.fed.app.client.client_train", arguments, log)
            stack.callback(self._child.end)
            profile = meeting / "profile.json"
            profile.write_text(json.dumps(attach_profile(self.name, meeting)), encoding="utf-8")
            self._attach(profile, stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def receive(self) -> bytes | None:
        """Wait for the next message; None if the server has no more.

        Raises:
            TrainingError: the server is gone, or has not heard of this process for too long.
        """
        from fl_lightning.network.relay import from_model

        with self._told():
            model = self._api.receive()
            if model is None:
                raise RuntimeError(self._lost)
            message = from_model(model)
        if message is None:
            self.send(b"")  # the farewell has come
        return message

    def send(self, message: bytes) -> None:
        """Send an answer to the message that was received last; the first message is sent without one.

        Raises:
            TrainingError: the server is gone, or has not heard of this process for too long.
        """
        from fl_lightning.network.relay import to_model

        with self._told():
            self._api.send(to_model(message))

    def _open(self) -> None:
        try:
            self._api.init("0")
        except Exception as error:  # FLARE's, of many kinds
            self._lost = str(error)
            self._api.shutdown()

    def _watch(self) -> None:
        """End the session when the server is gone, which FLARE's client tries to reach for ever."""
        heard = time.monotonic()
        while not self._left.wait(LOOK):
            if self._child.reaches(self._kit.port):
                heard = time.monotonic()
            elif time.monotonic() - heard > ALONE or not self._child.alive:
                self._lost = f"no connection for {ALONE:g} s" if self._child.alive else "FLARE's client has ended"
                self._api.shutdown()
                return

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # FLARE's own
            raise TrainingError(f"{self.name} has lost the server ({error}): see {self._child.log}") from error

    def _reach(self) -> None:
        """Wait until the server answers, and see whether both certificates are of one authority."""
        where = f"{self._kit.host}:{self._kit.port}"
        startup = self._kit.startup
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.check_hostname = False  # FLARE checks the name in the certificate
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        limit = time.monotonic() + self._patience
        refusals = 0
        while True:
            try:
                with socket.create_connection((self._kit.host, self._kit.port), ANSWER) as plain:
                    plain.settimeout(ANSWER)
                    with context.wrap_socket(plain) as secured, contextlib.suppress(TimeoutError):
                        if not secured.recv(1):  # the server's refusal comes after its own certificate
                            raise ssl.SSLError(ssl.SSL_ERROR_EOF, "it closes the connection")
                return
            except ssl.SSLCertVerificationError as error:
                raise ConfigurationError(
                    f"expected the server at {where} to have a certificate of the authority of {startup}, "
                    f"got another one: {error.verify_message}"
                ) from error
            except ssl.SSLError as error:
                refusals += 1
                if refusals < REFUSALS:  # a server that starts or ends closes connections, too
                    time.sleep(LOOK)
                    continue
                raise ConfigurationError(
                    f"the server at {where} refuses the certificate in {startup}, which must be of the authority of "
                    f"the server's own: {error.strerror or error}"
                ) from error
            except OSError as error:
                refusals = 0
                if time.monotonic() > limit:
                    raise ConfigurationError(
                        f"no server answered at {where} within {self._patience:g} s: {error}"
                    ) from error
                time.sleep(LOOK)

    def _attach(self, profile: Path, stack: contextlib.ExitStack) -> None:
        """Wait for the job, and for the empty message with which the relay asks for the first one."""
        from nvflare.client.cell.api import CellClientAPI

        self._api = CellClientAPI(bootstrap_file=str(profile))
        stack.callback(self._api.shutdown)
        waits = threading.Thread(target=self._open, daemon=True)
        waits.start()
        while waits.is_alive():
            waits.join(LOOK)
            if not self._child.alive:
                raise ConfigurationError(f"FLARE's client has ended: see {self._child.log}")
        self.receive()  # the error, if there was one
        stack.callback(self._left.set)
        threading.Thread(target=self._watch, daemon=True).start()
