"""Relay: the part of the server in FLARE's job process, which passes messages between FLARE's tasks and a socket.

On the socket each message is two: a head of JSON, which says whose message it is, and the message itself.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import defaultdict, deque
from typing import Any

import numpy as np
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from typing_extensions import override

from fl_lightning.engine.sites.sockets import read, write
from fl_lightning.network.settings import TASK

BYTES = "b"  # name of the one parameter
MESSAGE, END = b"m", b"e"
FAREWELL = 5.0  # seconds within which the sites say that they know of the end
PERIOD = 0.1  # seconds between two looks of FLARE at its tasks


def to_model(message: bytes | None) -> FLModel:
    """Write a message, or None for the end, as a model of FLARE with one parameter; its first byte tells which."""
    content = END if message is None else MESSAGE + message
    return FLModel(params={BYTES: np.frombuffer(content, np.uint8)})


def from_model(model: FLModel) -> bytes | None:
    """Read a message of :func:`to_model`; None for the end.

    Raises:
        ValueError: the model is another one.
    """
    value = (model.params or {}).get(BYTES)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 1 or not value.size:
        raise ValueError("expected a message, got another model")
    content = value.tobytes()
    return None if content[:1] == END else content[1:]


def put(end: socket.socket, head: dict[str, Any], message: bytes = b"") -> None:
    """Write a head and a message."""
    write(end, json.dumps(head).encode())
    write(end, message)


def get(end: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """Read a head and a message; None if the other end is closed."""
    head = read(end)
    message = None if head is None else read(end)
    if head is None or message is None:
        return None
    return json.loads(head), message


class Relay(Controller):  # type: ignore[misc]  # FLARE has no type hints
    """Passes the server's messages on to the job's sites, one at a time to each, and passes their answers back.

    Each site is asked for its first message with an empty one. The job ends when the server closes the socket.

    Args:
        address: path of the server's socket.
        name: the job's name at the server.
    """

    def __init__(self, address: str, name: str) -> None:
        super().__init__(task_check_period=PERIOD)
        self._address = address
        self._name = name
        self._waiting: dict[str, deque[bytes | None]] = defaultdict(deque)
        self._asked: dict[str, Task] = {}  # tasks that have yet to be answered, by site
        self._lock = threading.RLock()
        self._telling = threading.Lock()
        self._closed = threading.Event()

    @override
    def start_controller(self, fl_ctx: FLContext) -> None:
        self._end = socket.socket(socket.AF_UNIX)
        self._end.connect(self._address)
        self._tell({"job": self._name})

    @override
    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        sites = [client.name for client in fl_ctx.get_engine().get_clients()]
        for site in sites:
            self._add(site, b"", fl_ctx)
        threading.Thread(target=self._read, args=(fl_ctx,), daemon=True).start()
        while not self._closed.wait(PERIOD) and not abort_signal.triggered:
            pass
        for site in sites:
            self._add(site, None, fl_ctx)
        limit = time.monotonic() + FAREWELL
        while self._asked and time.monotonic() < limit and not abort_signal.triggered:
            time.sleep(PERIOD)

    @override
    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Leave the socket open: the server waits until the sites have been told of the end."""

    @override
    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.END_RUN:
            self._end.close()

    @override
    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Drop an answer that nobody waits for."""

    def _read(self, fl_ctx: FLContext) -> None:
        while (got := get(self._end)) is not None:
            head, message = got
            self._add(head["site"], message, fl_ctx)
        self._closed.set()

    def _add(self, site: str, message: bytes | None, fl_ctx: FLContext) -> None:
        with self._lock:
            self._waiting[site].append(message)
            self._next(site, fl_ctx)

    def _next(self, site: str, fl_ctx: FLContext) -> None:
        """Hand out a site's next message, unless the site has yet to answer the last one."""
        if site in self._asked or not self._waiting[site]:
            return
        message = self._waiting[site].popleft()
        task = Task(
            name=TASK,
            data=FLModelUtils.to_shareable(to_model(message)),
            result_received_cb=self._answered,
            task_done_cb=self._done,
        )
        self._asked[site] = task
        self.send(task, fl_ctx, targets=[site])

    def _answered(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        site, result = client_task.client.name, client_task.result
        client_task.result = None
        code = result.get_return_code()
        try:
            if code not in (None, ReturnCode.OK):
                raise ValueError(code)
            message = from_model(FLModelUtils.from_shareable(result)) or b""
        except ValueError as error:
            self._tell({"site": site, "failed": str(error)})
        else:
            self._tell({"site": site}, message)
        self._finish(site, client_task.task, fl_ctx)

    def _done(self, task: Task, fl_ctx: FLContext) -> None:
        (site,) = task.targets
        if self._finish(site, task, fl_ctx):
            self._tell({"site": site, "failed": str(task.completion_status)})

    def _finish(self, site: str, task: Task, fl_ctx: FLContext) -> bool:
        """Go on to the site's next message; False if that has been done before."""
        with self._lock:
            if self._asked.get(site) is not task:
                return False
            del self._asked[site]
            self._next(site, fl_ctx)
            return True

    def _tell(self, head: dict[str, Any], message: bytes = b"") -> None:
        with self._telling:
            put(self._end, head, message)
