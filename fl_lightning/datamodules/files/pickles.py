"""A reader of pickles that hold arrays, lists and dicts; it runs no code of the pickle."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.lib import format as npy
from typing_extensions import override

from fl_lightning.errors import ConfigurationError

NUMPY = ("numpy.core", "numpy._core")  # numpy's inner package, before and since NumPy 2
DEPTH = 20  # levels of containers in one another


def read_pickle(path: Path) -> Any:
    """Read a pickle file that holds plain values: numbers, texts, arrays, lists, tuples, sets and dicts.

    A pickle names the functions that make its values, and ``pickle.load`` calls them, whatever they are. Here a pickle
    gets stand-ins for the functions that make arrays, and no other function at all.

    Args:
        path: the file.

    Returns:
        The value; a dict of any class becomes a dict.

    Raises:
        ConfigurationError: the file cannot be read, or its pickle needs anything else.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        refuse(path, error)
    return unpickle(content, path)


def read_object(path: Path, name: str) -> Any:
    """Read the one object that ``numpy.savez(path, name=object)`` wrote, as :func:`read_pickle` does.

    Args:
        path: the npz file.
        name: name of the entry: an array of objects without axes, or an array of numbers.

    Raises:
        ConfigurationError: the file cannot be read, lacks the entry, or the entry's pickle needs anything else.
    """
    try:
        with zipfile.ZipFile(path) as entries:
            names = [entry.removesuffix(".npy") for entry in entries.namelist()]
            if name not in names:
                raise ConfigurationError(
                    f"expected the entry {name} in {path}, got {', '.join(names) or 'nothing'}: write it by "
                    f"numpy.savez(file, {name}={{'x': …, 'y': …}})"
                )
            content = io.BytesIO(entries.read(f"{name}.npy"))
        version = npy.read_magic(content)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        _, _, dtype = header(content)
        if dtype.hasobject:
            value = unpickle(content.read(), path)
            return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
        content.seek(0)
        return np.load(content, allow_pickle=False)
    except ConfigurationError:
        raise
    except Exception as error:  # a damaged file makes zipfile, zlib and NumPy raise many kinds
        refuse(path, error)


def unpickle(content: bytes, path: Path) -> Any:
    """Read a pickle as :func:`read_pickle` does; ``path`` is for messages."""
    try:
        return plain(_Unpickler(content, path).load())
    except ConfigurationError:
        raise
    except Exception as error:  # a damaged pickle makes the reader raise many kinds
        refuse(path, error)


def refuse(path: Path, error: Exception) -> NoReturn:
    """Say in one line that a file cannot be read."""
    said = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    raise ConfigurationError(
        f"expected a readable file of arrays in {path}, got {said[:100]!r}: write or copy the file again"
    ) from None


class _DType:
    """Stands for ``numpy.dtype`` while a pickle is read."""

    def __init__(self, text: str, *copies: object) -> None:
        self.text = text
        self.order: Any = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("an array with named fields")
        self.order = state[1]

    def dtype(self) -> Any:
        dtype = np.dtype(self.text)
        return dtype if self.order == "|" else dtype.newbyteorder(self.order)


class _Array:
    """Stands for an array while a pickle is read."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self, depth: int) -> Any:
        """Make the array of the shape, the type and the content that the pickle gave."""
        _, shape, kind, is_fortran, content = self.state
        dtype = kind.dtype()
        if not dtype.hasobject:
            return np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")
        objects = np.empty(len(content), dtype=object)
        for row, value in enumerate(content):
            objects[row] = plain(value, depth + 1)
        return objects.reshape(shape)  # objects are listed row by row, whatever the flag says


def _from_buffer(content: Any, kind: _DType, shape: Any, order: str) -> _Array:
    """Stand for the function that makes arrays in pickles of protocol 5."""
    array = _Array()
    array.state = (1, shape, kind, order == "F", content)
    return array


def _scalar(kind: _DType, content: bytes) -> Any:
    """Make a NumPy number."""
    return np.frombuffer(content, kind.dtype())[0]


def _empty(*arguments: object) -> _Array:
    """Stand for the function that makes an array before its content is read."""
    return _Array()


def _bytes(text: str = "", encoding: str = "latin1") -> bytes:
    """Make bytes, as pickles of protocol 2 write them."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes encoded as {encoding}")
    return text.encode("latin1")


def _no_factory(*factory: object) -> dict[Any, Any]:
    """Stand for ``defaultdict``, without the function that makes its defaults."""
    return {}


class _NDArray:
    """Stands for the class of arrays, which pickles name and do not call."""


STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _NDArray,
    **{(f"{package}.multiarray", "_reconstruct"): _empty for package in NUMPY},
    **{(f"{package}.multiarray", "scalar"): _scalar for package in NUMPY},
    **{(f"{package}.numeric", "_frombuffer"): _from_buffer for package in NUMPY},
    **{("builtins", kind.__name__): kind for kind in (dict, list, tuple, set)},
    **{("__builtin__", kind.__name__): kind for kind in (dict, list, tuple, set)},  # of protocol 2
    ("__builtin__", "bytes"): _bytes,
    ("_codecs", "encode"): _bytes,
    ("collections", "OrderedDict"): _no_factory,
    ("collections", "defaultdict"): _no_factory,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content))
        self.path = path

    @override
    def find_class(self, module: str, name: str) -> Any:
        found = STAND_INS.get((module, name))
        if found is None:
            raise ConfigurationError(
                f"expected arrays, lists and dicts in {self.path}, got a pickle that asks for {f'{module}.{name}'!r}, "
                "which is not run: write the file without it"
            )
        return found


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value of a pickle, with arrays in the place of their stand-ins."""
    if depth > DEPTH:
        raise pickle.UnpicklingError(f"more than {DEPTH} lists in one another")
    if isinstance(value, _Array):
        return value.array(depth)
    if isinstance(value, dict):
        return {key: plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    return value
