"""Pretrained models of the cache, without a network."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fl_lightning.datamodules.files.pretrained import read_pretrained
from fl_lightning.errors import ConfigurationError

transformers: Any = pytest.importorskip("transformers")


def test_a_model_of_the_cache_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though told to read local files alone, the library asks the hub for adapters, for 24 s."""

    def unknown(*address: Any, **options: Any) -> Any:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    cache, commit = tmp_path / "models--me--tiny", "0" * 40
    small = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11)
    made = transformers.GPT2LMHeadModel(small)
    made.save_pretrained(cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    start = time.monotonic()
    read = read_pretrained("AutoModelForCausalLM", "me/tiny", cache_dir=str(tmp_path))
    assert torch.equal(read.transformer.wte.weight, made.transformer.wte.weight)
    with pytest.raises(ConfigurationError, match="got me/other: no such folder here, and no answer from the hub"):
        read_pretrained("AutoModelForCausalLM", "me/other", cache_dir=str(tmp_path))
    assert time.monotonic() - start < 20
