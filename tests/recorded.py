"""Stands for CUDA graphs on a CPU: the operations of a step, recorded with their tensors and run again on these.

As on CUDA, a capture computes nothing that counts; a replay runs no Python of the step, and reads and writes the memory
that the capture saw; all recordings share memory, so that a replay overwrites what the others hold; and what would wait
for the device raises.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def places(tree: Any) -> set[int]:
    """The memory of the tensors in a tree of arguments or results."""
    return {each.untyped_storage().data_ptr() for each in tree_leaves(tree) if isinstance(each, Tensor)}


class Recording(TorchDispatchMode):
    """Records operations, with the tensors they get and give."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.own: dict[int, Tensor] = {}  # memory that the operations made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if WAITS & set(func.tags):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        result = func(*args, **(kwargs or {}))
        given = places((args, kwargs))
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() not in given:
                self.own[each.untyped_storage().data_ptr()] = each
        # Aliases keep the memory that a tensor has now, whatever its data becomes.
        self.calls.append((func, *tree_map_only(Tensor, Tensor.detach, (args, kwargs or {}, result))))
        return result

    def spoil(self) -> None:
        """Fill the recording's own memory with numbers that mean nothing."""
        for each in self.own.values():
            each.untyped_storage().fill_(0xFF)  # nan in every float, -1 in every integer

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, results in self.calls:
            given = places((args, kwargs))
            for old, new in zip(tree_leaves(results), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.untyped_storage().data_ptr() not in given:
                    old.copy_(new)


class Recorder:
    """Takes the place of ``CudaCapture``, and keeps what was recorded.

    Args:
        device: unused.
    """

    all: list["Recorder"] = []  # noqa: RUF012  # emptied by the fixture

    def __init__(self, device: torch.device) -> None:
        self.recordings: list[Recording] = []
        self.replays = 0
        self.all.append(self)

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        step()
        recording = Recording()
        with recording:
            result = step()
        self.recordings.append(recording)
        recording.spoil()

        def replay() -> None:
            for each in self.recordings:
                each.spoil()
            recording.replay()
            self.replays += 1

        return result, replay
