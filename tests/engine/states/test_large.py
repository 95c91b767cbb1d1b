"""Large frozen parameters are remembered in files: what a client changes there is seen, averaged and put back."""

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import ConfigurationError
from fl_lightning.engine.module import state as module_state
from fl_lightning.engine.module.state import ModuleState
from fl_lightning.engine.states import large
from fl_lightning.engine.states.large import LARGE, checksums, digest, fingerprint, is_large, on_file


class Frozen(LightningModule):
    """A large frozen parameter, a small one, and one that trains."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.large = nn.Parameter(torch.randn(1024, LARGE // 4096 * 2).to(dtype), requires_grad=False)
        self.small = nn.Parameter(torch.randn(3), requires_grad=False)
        self.trains = nn.Parameter(torch.zeros(3))


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "one entry": lambda weight: weight[5, 7].add_(1),
    "behind autograd's back": lambda weight: weight.data[0, 0].mul_(2),
    "two entries swapped": lambda weight: weight.data.copy_(weight.data.roll(1, 0)),
    "signs of every second entry": lambda weight: weight.data.view(-1)[1::2].neg_(),
    "another tensor": lambda weight: setattr(weight, "data", weight.data.flip(0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen_and_put_back(change: Callable[[Tensor], Any], dtype: torch.dtype) -> None:
    module = Frozen(dtype)
    before = module.large.detach().clone()
    state = ModuleState(module)
    place = state.names.index("large")
    assert state.read()[place] is state.buffers[place]
    change(module.large)
    now = state.read()[place]
    assert now is not state.buffers[place]
    assert torch.equal(now, module.large)  # type: ignore[arg-type]  # a tensor, not None
    state.restore()
    assert torch.equal(module.large, before)
    assert state.read()[place] is state.buffers[place]


def test_a_copy_is_written_once_for_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[Tensor]()

    def counted(tensor: Tensor) -> Tensor:
        written.append(tensor)
        return on_file(tensor)

    monkeypatch.setattr(module_state, "on_file", counted)
    module = Frozen()
    first = ModuleState(module)
    second = ModuleState(module, first)
    assert len(written) == 1
    place = first.names.index("large")
    assert second.buffers[place] is first.buffers[place]
    module.large.data.add_(1)
    third = ModuleState(module, second)
    assert len(written) == 2
    assert torch.equal(third.buffers[place], module.large)  # type: ignore[arg-type]  # a tensor, not None
    third.write(first.buffers)
    assert torch.equal(module.large, first.buffers[place])  # type: ignore[arg-type]  # a tensor, not None


def test_no_file_stays_and_no_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    weight = Frozen().large
    assert is_large(weight)
    assert not is_large(Frozen().small)
    assert torch.equal(on_file(weight), weight)
    assert not list(tmp_path.iterdir())
    if not Path("/dev/full").exists():
        pytest.skip("no full device")
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda **_: open("/dev/full", "wb"))  # noqa: SIM115, PTH123
    monkeypatch.setattr(Path, "unlink", lambda self: None)
    with pytest.raises(ConfigurationError, match=r"a copy of a frozen parameter of 8,388,608 bytes cannot be written"):
        on_file(weight)


def sums(tensors: Sequence[Tensor]) -> list[int]:
    """The checksums that are computed on a GPU."""
    return [int(large._weighted_sum(tensor)) for tensor in tensors]


on_each_device = pytest.mark.parametrize("checked", [checksums, sums])
Checked = Callable[[Sequence[Tensor]], list[int]]


@on_each_device
def test_checksums_of_several_parts(checked: Checked) -> None:
    """Two parts, in either order."""
    halves = torch.arange(2 << 16, dtype=torch.int32).view(2, -1)
    one, other, same = checked([halves, halves.flip(0), halves.clone()])
    assert one == same != other
    assert checksums([]) == []


@on_each_device
@pytest.mark.parametrize("entries", [2**10, 2**10 - 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8])
def test_a_checksum_is_of_the_bits_wherever_they_lie(entries: int, dtype: torch.dtype, checked: Checked) -> None:
    """Words of four bytes, or of an entry where there is a rest, or where the tensor begins within a word."""
    values = torch.arange(entries).to(dtype)
    later = torch.cat([torch.zeros(1, dtype=dtype), values])[1:]
    changed = values.clone()
    changed[0] += 1
    one, same, other = checked([values, later, changed])
    assert one == same != other


SIGNS: dict[str, tuple[torch.dtype, slice]] = {
    "all of float64": (torch.float64, slice(None)),
    "all of float32": (torch.float32, slice(None)),
    "every second of float32": (torch.float32, slice(1, None, 2)),
    "two of float32": (torch.float32, slice(1, 6, 4)),
    "every fourth of bfloat16": (torch.bfloat16, slice(3, None, 4)),
}


@on_each_device
@pytest.mark.parametrize("name", SIGNS)
@pytest.mark.parametrize("entries", [2**10, 2**19])
def test_weights_of_the_other_sign_are_others(name: str, entries: int, checked: Checked) -> None:
    """An even number of changed signs, in one part or several, whether the weights are drawn or all the same."""
    dtype, which = SIGNS[name]
    drawn = torch.randn(entries, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    for weights in (drawn, torch.ones_like(drawn)):
        others = weights.clone()
        others[which] *= -1
        one, other = checked([weights, others])
        assert one != other
        assert digest(weights) != digest(others)


def test_a_digest_is_of_dtype_shape_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAKE2b as hashlib computes it of all at once; a tensor's parts give the same."""
    values = torch.arange(6, dtype=torch.float32)
    told = hashlib.blake2b(b"torch.float32 (6,)" + values.numpy().tobytes(), digest_size=16).hexdigest()
    assert digest(values) == told
    monkeypatch.setattr(large, "PIECE", 5)
    assert digest(values) == told
    assert fingerprint(values) == xxhash.xxh3_64_intdigest(values.numpy().tobytes())
    assert len({digest(own) for own in (values, values.view(2, 3), values.view(torch.int32), -values)}) == 4
