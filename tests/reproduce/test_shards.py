"""Shards: every run is in one of them; refusals."""

from pathlib import Path

import pytest
from lib.job_folders import waiting

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.run_options import read_shard
from fl_lightning.reproduce.running import share


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_run_is_in_one_shard(count: int) -> None:
    """Five runs, one of which serves both experiments."""
    first, second = (Experiment(name, name, "", "", (), "", ("top1",), ()) for name in "ab")
    jobs = [waiting(Path("runs"), seed) for seed in range(5)]
    planned = [(first, [(Cell({}, ()), job) for job in jobs[:3]]), (second, [(Cell({}, ()), job) for job in jobs[2:]])]
    shards = [share(planned, number, count) for number in range(count)]
    folders = [{job.folder for _, pairs in shard for _, job in pairs} for shard in shards]
    assert sorted(folder for own in folders for folder in own) == sorted(job.folder for job in jobs)
    assert max(map(len, folders)) - min(map(len, folders)) <= 1
    assert all([experiment.id for experiment, _ in shard] == ["a", "b"] for shard in shards)


def test_a_shard_is_a_number_of_shares() -> None:
    assert read_shard("0/1") == (0, 1)
    assert read_shard("7/8") == (7, 8)
    for text in ("8/8", "1", "a/2", "-1/2", "1/0", ""):
        with pytest.raises(ConfigurationError, match=r"--shard must be I/N, I from 0 to N-1, got .*--array=0-7"):
            read_shard(text)
