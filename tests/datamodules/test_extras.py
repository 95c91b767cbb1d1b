"""Data modules of libraries that are not installed name the extra that installs them."""

import sys

import pytest

from fl_lightning.datamodules import FlowerDatasets, HuggingFace
from fl_lightning.errors import ConfigurationError


def test_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(ConfigurationError, match=r"needs datasets: pip install 'fl-lightning\[huggingface\]'$"):
        HuggingFace("my_folder", client="user")


def test_flower_datasets() -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'fl-lightning\[flower-datasets\]'\), got str"):
        FlowerDatasets("mnist")
