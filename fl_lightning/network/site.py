"""Site: carries messages between this process and the server, over NVIDIA FLARE."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from fl_lightning.errors import ConfigurationError
from fl_lightning.network.kits import check_installed, make_workspace, site_kit
from fl_lightning.network.processes import Child
from fl_lightning.network.settings import attach_profile, site_settings

LOOK = 0.2  # seconds between two looks at FLARE's process while this one waits for the job


class FlareSite:
    """Carries messages between this process and the server; see :class:`Connection`.

    FLARE's client runs as a child of this process. It takes no job but one that hands messages to this process, and
    none that brings code.

    Args:
        kit: the site's kit.
        folder: the folder for FLARE's logs.
    """

    def __init__(self, kit: Path, folder: Path) -> None:
        check_installed()
        self._kit = site_kit(kit)
        self._folder = folder.resolve()

    @property
    def name(self) -> str:
        """The site's name, from its certificate."""
        return self._kit.name

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            meeting = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))
            make_workspace(self._kit, self._folder, site_settings(meeting))
            self._child = Child(
                "nvflare.private.fed.app.client.client_train",
                ["-m", str(self._folder), "-s", "fed_client.json", "--set", "secure_train=true"]
                + [f"uid={self._kit.name}", f"org={self._kit.organisation}", "config_folder=config"]
                + ["heart_beat_interval=2"],
                {},
                self._folder / "output.txt",
            )
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
        """Wait for the next message; None if the server has no more."""
        from fl_lightning.network.relay import from_model

        model = self._api.receive()
        return None if model is None else from_model(model)

    def send(self, message: bytes) -> None:
        """Send an answer to the message that was received last; the first message is sent without one."""
        from fl_lightning.network.relay import to_model

        self._api.send(to_model(message))

    def _attach(self, profile: Path, stack: contextlib.ExitStack) -> None:
        """Wait for the job, and for the empty message with which the relay asks for the first one."""
        from nvflare.client.cell.api import CellClientAPI

        self._api = CellClientAPI(bootstrap_file=str(profile))
        stack.callback(self._api.shutdown)
        waits = threading.Thread(target=self._api.init, args=("0",), daemon=True)
        waits.start()
        while waits.is_alive():
            waits.join(LOOK)
            if not self._child.alive:
                raise ConfigurationError(f"FLARE's client has ended: see {self._child.log}")
        self.receive()
