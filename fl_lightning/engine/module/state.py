"""ModuleState: everything of a module outside the flat vector, put back after each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.engine.module.held import Held
from fl_lightning.engine.module.params import Tree, registry
from fl_lightning.engine.states.large import checksums, is_large, on_file

Buffers = Sequence[Tensor | None]
"""Values of a module's buffers, in the order of ``module.buffers()``, of its frozen parameters, in that of
``module.parameters()``, and of the buffers that are None, which a client may set."""


Copies = dict[tuple[int, int | None], Tensor | None]
"""Copies of large frozen parameters, by the parameter's id and its checksum."""


class ModuleState:
    """Remembers a module, apart from its trainable parameters, and undoes the changes that a client makes.

    Remembered are buffers, frozen parameters, registered parameters, submodules and hooks, ``requires_grad`` flags,
    training modes, extra state (``get_extra_state``), and all other attributes with whatever they hold (:class:`Held`):
    containers, objects, random number generators, torchmetrics objects. Copies of large frozen parameters lie in files
    (:mod:`fl_lightning.engine.states.large`).

    Args:
        module: the module, which is remembered as it is now.
        before: an earlier memory of the module, whose list of objects is taken over if no attribute has changed since,
            and whose copies of large frozen parameters are, as far as these are the same.
    """

    _held: Held

    def __init__(self, module: nn.Module, before: ModuleState | None = None) -> None:
        self._module = module
        self._tree = Tree(module)
        self._flags = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
        self._device = next((parameter.device for parameter, _ in self._flags), torch.device("cpu"))
        self._extra = [(p, deepcopy(p.get_extra_state())) for p in module.modules() if _has_extra_state(p)]
        self._slots = _slots(module, {} if before is None else before._copies)
        large = [slot for slot in self._slots if slot.checksum is not None]
        self._copies: Copies = {(id(slot.tensor), slot.checksum): slot.value for slot in large}
        if before is not None and not before._held.is_changed():
            self._held = before._held
        else:
            known = [*self.trainable, *(slot.tensor for slot in self._slots)]
            self._held = Held(module, map(id, known))
        self._values = [tensor.detach().clone() for tensor in self._held.tensors]

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that require a gradient, in the order of ``module.parameters()``."""
        return [parameter for parameter, flag in self._flags if flag]

    @property
    def buffers(self) -> Buffers:
        """The remembered values of the state tensors; do not write to the tensors."""
        return [slot.value for slot in self._slots]

    @property
    def names(self) -> list[str]:
        """The names of the state tensors in the module."""
        return [slot.path for slot in self._slots]

    def read(self) -> Buffers:
        """Return the present values of the state tensors: copies of the changed tensors, the remembered ones else."""
        named: dict[str, Tensor | None] = {slot.path: slot.registry.get(slot.name) for slot in self._slots}
        if self._slots and not self._tree.is_whole():
            named = dict(self._module.named_buffers(remove_duplicate=False))
            named |= dict(self._module.named_parameters(remove_duplicate=False))
        return self.of(named)

    def of(self, named: Mapping[str, Tensor | None]) -> Buffers:
        """Return the state tensors of a module of this kind, given by their names: copies of those that differ."""
        now = [named.get(slot.path) for slot in self._slots]
        values: list[Tensor | None] = []
        for new, slot, is_same in zip(now, self._slots, _are_as_remembered(now, self._slots), strict=True):
            if new is None or is_same:
                values.append(slot.value)
            else:
                values.append(new.detach().clone())
        return values

    def write(self, values: Buffers) -> None:
        """Write values, one per state tensor, into the module; None leaves a state tensor as it is."""
        with torch.no_grad():
            for slot, value in zip(self._slots, values, strict=True):
                if value is None:
                    continue
                now = slot.registry.get(slot.name)
                if now is None:
                    slot.registry[slot.name] = value.to(self._device).clone()
                elif value is slot.value:
                    slot.put_back(now)
                else:
                    _put(now, value.to(self._device))

    def is_changed(self) -> bool:
        """Tell whether an attribute, or what an attribute holds, differs from what was remembered."""
        return self._held.is_changed() or not all(_are_same(self._held.tensors, self._values))

    def restore(self) -> list[str]:
        """Put back whatever has changed; where nothing has changed, this costs some comparisons.

        Returns:
            Names of public attributes with a number, a container or an object that has changed, such as
            ``MyModule.step_count``.
        """
        names = self._held.restore()
        for parameter, flag in self._flags:
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)
        for module, state in self._extra:
            module.set_extra_state(deepcopy(state))
        with torch.no_grad():
            for slot in self._slots:
                if slot.tensor is not None:
                    slot.put_back(slot.tensor)
            for tensor, value in zip(self._held.tensors, self._values, strict=True):
                _put(tensor, value)
        return names


def _has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


@dataclass
class _Slot:
    """A place where a module registers a buffer or a frozen parameter.

    Attributes:
        path: the name in the whole module.
        registry: the submodule's dict of buffers or parameters.
        name: the name in the dict.
        tensor: the registered object, None for an empty buffer.
        value: a copy of the tensor.
        checksum: checksum of the value, where the copy lies in a file; None where it lies in memory.
    """

    path: str
    registry: dict[str, Any]
    name: str
    tensor: Tensor | None
    value: Tensor | None = None
    checksum: int | None = None

    def put_back(self, now: Tensor) -> None:
        """Give a tensor the remembered value, unless it has the value."""
        assert self.value is not None
        if self.checksum is None:
            _put(now, self.value)
        elif not _has_form(now, self) or checksums([now]) != [self.checksum]:
            overwrite(now, self.value.to(now.device))


def _slots(module: nn.Module, copies: Copies) -> list[_Slot]:
    """Find the state tensors of a module; a tensor that is registered twice has one slot.

    Args:
        module: the module.
        copies: earlier copies of large frozen parameters.
    """
    parts = list(module.named_modules())
    buffers = [(path, registry(part, "_buffers")) for path, part in parts]
    parameters = [(path, registry(part, "_parameters")) for path, part in parts]
    filled: dict[int, _Slot] = {}  # by the tensor's id
    for path, own in [*buffers, *parameters]:
        for name, tensor in own.items():
            if tensor is not None and not tensor.requires_grad and id(tensor) not in filled:
                filled[id(tensor)] = _Slot(_full_name(path, name), own, name, tensor)
    large: dict[int, Tensor] = {}
    for place, slot in filled.items():
        assert slot.tensor is not None
        if is_large(slot.tensor):
            large[place] = slot.tensor
        else:
            slot.value = slot.tensor.detach().clone()
    for (place, tensor), checksum in zip(large.items(), checksums(list(large.values())), strict=True):
        copy = copies.get((place, checksum))
        filled[place].checksum = checksum
        filled[place].value = on_file(tensor) if copy is None else copy
    empty: list[_Slot] = []
    for path, own in buffers:
        for name, tensor in own.items():
            if tensor is None:
                empty.append(_Slot(_full_name(path, name), own, name, None))
    return [*filled.values(), *empty]


def make_room(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Give buffers that are None, empty or expanded the shapes that they have in a state_dict, as clients left them."""
    for path, part in module.named_modules():
        for name, buffer in list(part._buffers.items()):
            saved = state.get(_full_name(path, name))
            if isinstance(saved, Tensor) and (buffer is None or not buffer.numel() or 0 in buffer.stride()):
                part._buffers[name] = torch.empty_like(saved)


def _full_name(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _are_as_remembered(tensors: Sequence[Tensor | None], slots: Sequence[_Slot]) -> list[bool]:
    """Tell for each tensor whether it has the value that its slot remembers; False where one is missing."""
    in_memory: list[Tensor | None] = []
    for slot in slots:
        in_memory.append(slot.value if slot.checksum is None else None)
    answers = _are_same(tensors, in_memory)
    large: dict[int, Tensor] = {}  # by place, as their answers are read together, too
    for place, (tensor, slot) in enumerate(zip(tensors, slots, strict=True)):
        if tensor is not None and slot.checksum is not None and _has_form(tensor, slot):
            large[place] = tensor
    for place, checksum in zip(large, checksums(list(large.values())), strict=True):
        answers[place] = checksum == slots[place].checksum
    return answers


def _has_form(tensor: Tensor, slot: _Slot) -> bool:
    """Tell whether a tensor has shape and dtype of a large frozen parameter, and may have its checksum."""
    value = slot.value
    assert value is not None
    return tensor.shape == value.shape and tensor.dtype is value.dtype and tensor.is_contiguous()


def _are_same(tensors: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> list[bool]:
    """Tell for each pair of tensors whether they are the same; False where one is missing.

    The answers of another device are read together, because each reading waits until that device has done its work.
    """
    answers: list[bool] = []
    on_device: dict[int, Tensor] = {}  # by place, answers that have not been read
    for place, (tensor, other) in enumerate(zip(tensors, others, strict=True)):
        if tensor is None or other is None:
            answers.append(False)
        elif _is_away(tensor, other):
            on_device[place] = (tensor == other).all()
            answers.append(False)  # until it is read
        else:
            answers.append(_same(tensor, other))
    if on_device:
        read = torch.stack(list(on_device.values())).tolist()
        for place, answer in zip(on_device, read, strict=True):
            answers[place] = answer
    return answers


def _is_away(tensor: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors must be compared entry by entry on another device."""
    strided = tensor.layout is other.layout is torch.strided
    return not tensor.is_cpu and strided and tensor.shape == other.shape and tensor.dtype == other.dtype


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and entries; a tensor with a nan is never the same as another."""
    if tensor.dtype is not other.dtype or tensor.layout is not other.layout:
        return False
    if tensor.layout is not torch.strided:
        return torch.equal(tensor.to_dense(), other.to_dense())
    return torch.equal(tensor, other)


def _put(tensor: Tensor, value: Tensor) -> None:
    """Give a tensor another value, unless it has the value; on another device, comparing would cost more."""
    if not (tensor.is_cpu and _same(tensor, value)):
        overwrite(tensor, value)


def overwrite(tensor: Tensor, value: Tensor) -> None:
    """Give a tensor another value, in place if its shape and memory allow (not those of an expanded tensor)."""
    plain = tensor.layout is value.layout is torch.strided and 0 not in tensor.stride()
    if plain and tensor.shape == value.shape:
        tensor.copy_(value)
    else:
        tensor.data = value.to(tensor, copy=True)
