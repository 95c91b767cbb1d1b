"""Pickles of arrays: what is read, and what is refused without being run."""

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_lightning.datamodules.files.pickles import read_object, read_pickle
from fl_lightning.errors import ConfigurationError

VALUES: dict[str, Any] = {
    "transposed": np.arange(6, dtype=">i2").reshape(2, 3).T,
    "numbers": [np.float32(2.5), np.int64(3), 1, None, True],
    "texts": np.array(["x", "yy"]),
    "lists": np.array([[1, 2], [3, 4]], dtype=object, order="F"),
    "ragged": np.array([[1], [2, 3]], dtype=object),
    "no rows": np.zeros((0, 3)),
    "default": collections.defaultdict(list, {1: [np.arange(3)]}),
    "ordered": collections.OrderedDict(z=1),
}


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_values_of_every_protocol(protocol: int, tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(VALUES, protocol))
    read = read_pickle(tmp_path / "a.pkl")
    assert read.keys() == VALUES.keys()
    for name in ("transposed", "texts", "lists", "ragged", "no rows"):
        assert read[name].dtype == VALUES[name].dtype
        assert read[name].tolist() == VALUES[name].tolist()
    assert read["numbers"] == VALUES["numbers"]
    assert read["default"][1][0].tolist() == [0, 1, 2]
    assert read["ordered"] == {"z": 1}


def test_an_object_in_an_npz(tmp_path: Path) -> None:
    """As NumPy reads the file, if it may run its pickle."""
    np.savez_compressed(tmp_path / "0.npz", data=np.array({"x": np.eye(2), "y": np.arange(2)}))
    read = read_object(tmp_path / "0.npz", "data")
    with np.load(tmp_path / "0.npz", allow_pickle=True) as arrays:
        assert read["x"].tolist() == arrays["data"].item()["x"].tolist() == [[1, 0], [0, 1]]
    np.savez(tmp_path / "1.npz", data=np.arange(3))
    assert read_object(tmp_path / "1.npz", "data").tolist() == [0, 1, 2]


class Hostile:
    """Writes a file when its pickle is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def test_code_in_an_npz_does_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    np.savez(tmp_path / "0.npz", data=np.array({"x": Hostile(marker), "y": np.arange(2)}))
    with pytest.raises(
        ConfigurationError, match=r"got a pickle that asks for '(posix|nt).system', which is not run"
    ) as e:
        read_object(tmp_path / "0.npz", "data")
    assert "\n" not in str(e.value)
    assert not marker.exists()
    with np.load(tmp_path / "0.npz", allow_pickle=True) as arrays:
        arrays["data"]  # the file does run code, where code may run
    assert marker.exists()


class Called:
    """Asks for a call with given arguments when its pickle is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("called", [eval, getattr, __import__, np.load, np.lib.format.open_memmap])
def test_no_other_function_is_called(called: Any, tmp_path: Path) -> None:
    name = f"{called.__module__}.{called.__name__}"
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([Called(called, "1")]))
    with pytest.raises(ConfigurationError, match=f"asks for '{name}', which is not run"):
        read_pickle(tmp_path / "a.pkl")


def test_arrays_are_not_made_by_numpy_s_own_functions(tmp_path: Path) -> None:
    """An array of objects in given bytes would hold pointers that the file chooses; the class is not even called."""
    hostile = Called(np.ndarray, (1,), np.dtype(object), b"12345678")
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(hostile))
    with pytest.raises(ConfigurationError, match=r"expected a readable file of arrays in .*a.pkl"):
        read_pickle(tmp_path / "a.pkl")
    records = np.zeros(2, dtype=[("a", "i4")])
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(records))
    with pytest.raises(
        ConfigurationError, match=r"expected a readable file of arrays in .*b.pkl, got 'an array with na"
    ):
        read_pickle(tmp_path / "b.pkl")


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    """Every shorter beginning of a file, and a file that is not there."""
    np.savez(tmp_path / "0.npz", data=np.array({"x": np.eye(2), "y": np.arange(2)}))
    whole = (tmp_path / "0.npz").read_bytes()
    content = pickle.dumps(VALUES)
    for length in range(0, len(content), 7):
        (tmp_path / "a.pkl").write_bytes(content[:length])
        with pytest.raises(
            ConfigurationError, match=r"expected a readable file of arrays in .*a.pkl, got .+: write or"
        ):
            read_pickle(tmp_path / "a.pkl")
    for length in range(0, len(whole), 7):
        (tmp_path / "a.npz").write_bytes(whole[:length])
        with pytest.raises(
            ConfigurationError, match=r"expected a readable file of arrays in .*a.npz, got .+: write or"
        ):
            read_object(tmp_path / "a.npz", "data")
    with pytest.raises(ConfigurationError, match=r"nowhere.pkl, got 'No such file or directory'"):
        read_pickle(tmp_path / "nowhere.pkl")
    with pytest.raises(ConfigurationError, match=r"expected the entry y in .*0.npz, got data: write it by"):
        read_object(tmp_path / "0.npz", "y")


def test_lists_in_themselves_are_refused(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(endless))
    with pytest.raises(ConfigurationError, match=r"more than 20 lists in one another"):
        read_pickle(tmp_path / "a.pkl")
