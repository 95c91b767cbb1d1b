"""CudaCapture: a function's work on a CUDA device as a graph that is launched at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3  # calls before a capture, in which libraries choose their kernels

Step = Callable[[], Tensor]
Capture = Callable[[Step], tuple[Tensor, Callable[[], Any]]]


class CudaCapture:
    """Captures functions as CUDA graphs that share memory: a replay may overwrite the results of another graph.

    Args:
        device: the CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool, self._generator = torch.cuda.graph_pool_handle(), torch.cuda.default_generators[device.index or 0]

    def __call__(self, step: Step) -> tuple[Tensor, Callable[[], Any]]:
        """Call a function some times, then capture it; return the memory of its result, and a function for replays.

        Raises:
            RuntimeError: the function waits for the device, or does something else that a graph cannot hold.
        """
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP - 1):
                step()
            mode = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("error")  # to find waits here: one inside a capture breaks more than that
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:  # meanwhile, other threads, such as those of data loaders, may use the device
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                result = step()
        except Exception:
            self._generator.graphsafe_set_state(self._generator.clone_state())  # the state before believes in a capture
            raise
        return result, graph.replay


CAPTURES: dict[str, Callable[[torch.device], Capture]] = {"cuda": CudaCapture}  # by type of device
