"""A pretended accelerator, so that a machine without one shows where code would mix devices.

Its kernels are the CPU's, so results can be compared with the CPU's bit for bit. It shows nothing of a real device's
asynchrony, rounding (TF32, fused kernels), several devices or speed.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor

NAME = "pretended"


class Module(ModuleType):
    """The module ``torch.pretended``, with the functions that torch and this project ask of a device's module."""

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed(self, seed: int) -> None:
        self.set_rng_state(torch.Generator().manual_seed(seed).get_state())

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = 0) -> Tensor:
        return torch.ops.pretended.get_rng_state()  # type: ignore[no-any-return]  # known when loaded

    def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
        torch.ops.pretended.set_rng_state(state)

    def synchronize(self) -> None: ...

    def memory_allocated(self) -> int:
        return torch.ops.pretended.allocated()  # type: ignore[no-any-return]  # known when loaded

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class PretendedAccelerator(Accelerator):
    """Lightning's way to the device."""

    def setup_device(self, device: torch.device) -> None: ...

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(NAME, 0)]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME


def build() -> Module:
    """Compile the device, which takes some ten seconds, and make it known to torch, for the rest of the process."""
    from torch.utils.cpp_extension import load  # on import, it warns of missing CUDA

    load(NAME, [str(Path(__file__).with_suffix(".cpp"))], extra_cflags=["-O0", "-w"], is_python_module=False)
    module = Module(NAME)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    # A module that moves keeps its parameters, as between the CPU and CUDA: tied parameters stay tied.
    torch.__future__.set_swap_module_params_on_conversion(True)
    return module


def on_device(precision: str = "32-true") -> dict[str, Any]:
    """Settings of one Trainer on the device."""
    strategy = SingleDeviceStrategy(torch.device(NAME, 0))
    settings = {"accelerator": PretendedAccelerator(), "devices": 1, "strategy": strategy}
    if precision.endswith("-mixed"):
        scaler = torch.amp.GradScaler(NAME) if precision == "16-mixed" else None
        return settings | {"plugins": [MixedPrecision(precision, NAME, scaler)]}  # type: ignore[arg-type]  # a literal
    return settings | {"precision": precision}
