"""The memory of a round's updates: below and above the limit, and rows in another order."""

import resource
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from lib.command import limit
from lib.covering import every
from lib.rules import BY_KIND, CLIENT_RULES, PERSONAL, SERVER_RULES, TinyClassifier, TinyData
from lib.toy import Capture, trainer

from fl_lightning import ClientFailure, ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun, Server
from fl_lightning.engine.updates.store import bytes_in, new_rows
from fl_lightning.engine.updates.updates import arrange

RULES: dict[str, Any] = {**SERVER_RULES, **CLIENT_RULES, **PERSONAL}


@pytest.mark.parametrize(("size", "expected"), [("512KiB", 1 << 19), ("4GiB", 4 << 30), ("0.5 TiB", 1 << 39)])
def test_sizes(size: str, expected: int) -> None:
    assert bytes_in(size) == expected


@pytest.mark.parametrize("size", ["4", "4GB", "-1GiB", "GiB", ""])
def test_other_sizes_are_refused(size: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cohort_memory must be a size such as 4GiB, in KiB, MiB, .*, got"):
        FederatedOrchestrator(TinyClassifier(), cohort_memory=size)


def mapped_files() -> list[str]:
    return [each.path for each in psutil.Process().memory_maps(grouped=False) if "/updates-" in each.path]


def test_a_matrix_above_the_limit_is_in_a_file_that_leaves_nothing(tmp_path: Path) -> None:
    like = torch.zeros(1000, dtype=torch.float64)
    small = new_rows(10, like, limit=80_000, folder=tmp_path / "run")
    assert small.shape == (10, 1000)
    assert not mapped_files()
    large = new_rows(11, like, limit=80_000, folder=tmp_path / "run")
    (path,) = mapped_files()
    assert path.startswith(str(tmp_path / "run"))
    assert not list((tmp_path / "run").iterdir())
    large.copy_(torch.arange(11.0)[:, None].expand(11, 1000))
    assert (large.dtype, large.sum().item()) == (torch.float64, 55_000)
    del large
    assert not mapped_files()


def test_a_matrix_that_no_disk_holds_is_refused_in_one_line(tmp_path: Path) -> None:
    like = torch.zeros(1_000_000, dtype=torch.float64)
    with limit(resource.RLIMIT_FSIZE, 1 << 20), pytest.raises(ConfigurationError) as refusal:
        new_rows(200, like, limit=1 << 30, folder=tmp_path)
    said = "a round's updates (200 clients × 1,000,000 parameters"
    assert str(refusal.value).startswith(said)
    assert str(refusal.value).endswith("raise model.cohort_memory, or draw fewer clients")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("order", [[0, 2, 4], [4, 3, 2, 1, 0], [1, 2, 0], [3], [], [0, 1, 2, 3, 4]])
def test_rows_move_to_the_top_in_place(order: list[int]) -> None:
    rows = torch.arange(5.0)[:, None].repeat(1, 2)
    top = arrange(rows, order)
    assert top.tolist() == [[row, row] for row in order]
    assert not order or top.data_ptr() == rows.data_ptr()


class Fails(FederatedCallback):
    """Client 1 raises in round 2."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        if (run.client, run.round) == (1, 2):
            raise ClientFailure("lost")


@pytest.mark.filterwarnings("ignore:.*left out")
@every(list(RULES), [next(iter(rules)) for rules in (*BY_KIND, CLIENT_RULES, PERSONAL)])
def test_updates_in_a_file_change_no_bit(row: str, tmp_path: Path) -> None:
    """Three rounds, in one of which a client fails; quick for the first rule of each kind."""
    params = []
    for memory in (None, "1KiB"):
        orchestrator, capture = FederatedOrchestrator(TinyClassifier(), cohort_memory=memory), Capture()
        data = TinyData(batch_size=4)
        trainer(Fails(), RULES[row](), capture, rounds=3, default_root_dir=tmp_path).fit(orchestrator, datamodule=data)
        assert capture.cohort.clients == tuple(data.cohort(3))
        params.append(orchestrator.params.clone())
    assert torch.equal(*params)
    assert not mapped_files()
