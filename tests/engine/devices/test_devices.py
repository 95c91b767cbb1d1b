"""client_parallel: when it is chosen, and that the number of devices, nodes and stops change no bit."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lib.command import HANG, TINY, fit, fit_on, free_port, rows, run
from lib.resumed import assert_same
from lib.totals import files, last
from lightning import Trainer
from lightning.pytorch.strategies import StrategyRegistry
from safetensors.torch import load_file

from fl_lightning.engine.devices.strategy import ClientParallelStrategy

RULES = [
    "FedAvg",
    "GradientHarmonization",
    "DominantGradientCorrection",
    "FedLAW",
    "Scaffold",
    "MOON",
    "FedGAMCV",
    "FedDyn",
    "FedBE",
    "CoordinateMedian",
    '{"class_path": "DnC", "init_args": {"num_byzantine": 1, "coordinates": 100}}',
    "MIFA",
    "QFedAvg",
    "FedADMM",
    '{"class_path": "CentredClipping", "init_args": {"threshold": 1.0}}',
    '{"class_path": "ALIE", "init_args": {"num_byzantine": 2}}',
]


def test_it_is_known_by_name() -> None:
    assert "client_parallel" in StrategyRegistry.available_strategies()
    trainer = Trainer(strategy="client_parallel", devices=2, accelerator="cpu", logger=False)
    assert isinstance(trainer.strategy, ClientParallelStrategy)


OWN = """
import os, time
import torch
from torch import nn
from torchmetrics import MeanMetric
from fl_lightning import FederatedCallback
from fl_lightning.models import ImageClassifier

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10))

class Logging(ImageClassifier):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.mean = MeanMetric()

    def training_step(self, batch, batch_idx):
        outputs = super().training_step(batch, batch_idx)
        self.mean.update(outputs["loss"].detach())
        self.log("train/mean", self.mean)
        return outputs

class Totals(FederatedCallback):
    def on_before_client_step(self, run):
        run.grads.add_(self.recall(f"sum/{run.client}", torch.zeros_like(run.grads)), alpha=0.1)

    def aggregate(self, orchestrator, cohort):
        if orchestrator.trainer.global_rank == 0 and orchestrator.trainer.world_size > 1:
            time.sleep(0.3)  # the others are ahead of the one that writes
        for client, delta in zip(cohort.clients, cohort.deltas):
            self.state[f"sum/{client}"] = self.recall(f"sum/{client}", torch.zeros_like(delta)) + delta
        return cohort

    def update(self, orchestrator, cohort, update):
        with open(f"{os.getpid()}.rank", "w") as file:
            file.write(str(self.state._writes))
        return update + 0.01 * sum(self.state[f"sum/{client}"] for client in cohort.clients)
"""


def test_two_devices_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes over gloo, of which one writes the clients' states, and both read them; cohorts that leave each
    device one client, two, one, and the second one none, beside padding; a client whose update is left out by the
    cohort's median; batch normalisation and dropout; and a metric of the module, which must not wait for the others.
    """
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    Path("tiny.yaml").write_text(TINY)
    Path("cohorts.txt").write_text("1 2\n0 1 2 3\n1 3\n2\n")
    settings: list[object] = ["--model.client", "own.Logging", "--model.client.network", "own.Net"]
    settings += ["--trainer.callbacks+=own.Totals"]
    settings += ["--model.client_states", "disk", "--model.max_update_norm", 10, "--trainer.max_epochs", 4]
    settings += ["--trainer.callbacks+=FaultInjection", "--trainer.callbacks.fault", "huge"]
    settings += ["--trainer.callbacks.clients", "[1]", "--trainer.callbacks.rounds", "[3]"]
    settings += ["--data.sampler", "FixedSchedule", "--data.sampler.path", "cohorts.txt"]
    settings += ["--data.participation", 4, "--data.partition", "IID"]
    for devices in 1, 2:
        fit_on(devices, *settings, "--experiment", f"on{devices}", "--data.clients_per_batch", devices)
    assert sorted(file.read_text() for file in tmp_path.glob("*.rank")) == ["False", "True", "True"]
    one, two = (Path("runs", f"on{devices}", "version_0") for devices in (1, 2))
    assert_same(last(one), last(two))
    assert (one / "metrics.csv").read_text() == (two / "metrics.csv").read_text()
    assert files(one) == files(two)
    assert all(torch.equal(*(load_file(f / "states/Totals" / n)["value"] for f in (one, two))) for n in files(one))

    found = rows(one / "metrics.csv")
    state = torch.load(last(one))["state_dict"]
    size = sum(value.numel() for name, value in state.items() if name.endswith(("weight", "bias")))  # P
    assert [row["clients/quarantined"] for row in found] == [0, 0, 1, 0]
    assert [row["clients/state_bytes"] / 4 / size for row in found] == pytest.approx([2, 4, 4, 4], rel=1e-3)
    assert all("train/mean" in row for row in found)
    shutil.rmtree(one / "states")  # which a test does not read
    tested = run("test", "--config", "tiny.yaml", *settings, "--ckpt_path", last(one))
    assert tested.status == 0, tested.err


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_devices_stops_and_memory_change_no_bit(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One, two and three processes, five of nine clients a round; updates in memory and in a file; a stop after two of
    four rounds, which goes on with another number of processes.
    """
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    settings = ["--trainer.callbacks", rule, "--data.num_clients", 9, "--data.participation", 5]
    settings += ["--data.proxy_per_class", 2, "--data.partition.alpha", 1.0]
    fit_on(1, "--experiment", "one", *settings, "--trainer.max_epochs", 4)
    fit_on(2, "--experiment", "two", *settings, "--trainer.max_epochs", 4, "--model.cohort_memory", "1KiB")
    fit_on(3, "--experiment", "three", *settings, "--trainer.max_epochs", 4)
    fit_on(3, "--experiment", "mapped", *settings, "--trainer.max_epochs", 2, "--model.cohort_memory", "1KiB")
    fit_on(1, "--experiment", "mapped", *settings, "--trainer.max_epochs", 4, "--ckpt_path", "last")
    first, *others = (Path("runs", name, "version_0") for name in ("one", "two", "three", "mapped"))
    for other in others:
        assert_same(first / "checkpoints/last.ckpt", other / "checkpoints/last.ckpt")
        assert (first / "metrics.csv").read_text() == (other / "metrics.csv").read_text()


ADAPTERS = """
base: adapters/causal_lm_lora.yaml
trainer:
  callbacks:
    - class_path: AveragedMoments
    - class_path: GenerationMonitor
      init_args: {prompts: 3, length: 4, every: 2, given: 6}
model: {client: {init_args: {dropout: 0.3}}}
data: {init_args: {num_clients: 5, texts: 24, test_texts: 8, participation: 3}}
"""


@pytest.mark.slow
def test_adapters_with_dropout_on_any_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A language model; one and two processes, and a stop that goes on with another number."""
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(ADAPTERS)
    fit_on(1, "--experiment", "one", "--trainer.max_epochs", 4)
    fit_on(2, "--experiment", "two", "--trainer.max_epochs", 4)
    fit_on(2, "--experiment", "stopped", "--trainer.max_epochs", 2)
    fit_on(1, "--experiment", "stopped", "--trainer.max_epochs", 4, "--ckpt_path", "last")
    first, *others = (Path("runs", name, "version_0") for name in ("one", "two", "stopped"))
    for other in others:
        assert_same(first / "checkpoints/last.ckpt", other / "checkpoints/last.ckpt")
        assert (first / "metrics.csv").read_text() == (other / "metrics.csv").read_text()
    assert {"val/perplexity", "generation/rouge_l"} <= rows(first / "metrics.csv")[-1].keys()


BIN = Path(sys.executable).parent
NODES = ["--trainer.num_nodes", "2", "--trainer.devices", "1", "--trainer.strategy", "client_parallel"]
SLURM = ["--trainer.plugins", "SLURMEnvironment", "--trainer.plugins.auto_requeue", "false"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    return tmp_path


def command(experiment: str, rounds: int) -> list[str]:
    whole = ["fit", "--config", "tiny.yaml", "--experiment", experiment, "--trainer.max_epochs", str(rounds)]
    return [str(BIN / "fl-lightning"), *whole]


def same(one: str, other: str) -> None:
    first, second = (Path("runs", name, "version_0") for name in (one, other))
    assert_same(first / "checkpoints/last.ckpt", second / "checkpoints/last.ckpt")
    assert (first / "metrics.csv").read_text() == (second / "metrics.csv").read_text()


@pytest.mark.slow
def test_torchrun(folder: Path) -> None:
    fit("--experiment", "one", "--trainer.max_epochs", 3)
    port = free_port()
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
    nodes = [
        subprocess.Popen([str(BIN / "torchrun"), *where, "--node-rank", rank, *command("two", 3), *NODES])
        for rank in ("0", "1")
    ]
    assert [node.wait(HANG) for node in nodes] == [0, 0]
    same("one", "two")


def tasks(*args: str) -> list[subprocess.Popen[bytes]]:
    """Two tasks with the variables that srun gives them."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "two", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
    job |= {"SLURM_LOCALID": "0", "SLURM_NODELIST": "127.0.0.1", "SLURM_NTASKS_PER_NODE": "1"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [
        subprocess.Popen(
            [*command("two", 60), *NODES, *SLURM, *args],
            env={**os.environ, **job, "SLURM_PROCID": rank, "SLURM_NODEID": rank},
        )
        for rank in ("0", "1")
    ]


@pytest.mark.slow
def test_slurm_stops_and_goes_on(folder: Path) -> None:
    """SIGUSR1 to both tasks ends them after a round; srun returns the largest status."""
    fit("--experiment", "one", "--trainer.max_epochs", 60)
    started, metrics = tasks(), Path("runs/two/version_0/metrics.csv")
    deadline = time.monotonic() + HANG
    while not (metrics.exists() and len(rows(metrics)) > 2):
        assert time.monotonic() < deadline
        assert all(task.poll() is None for task in started)
        time.sleep(0.01)
    for task in started:
        task.send_signal(signal.SIGUSR1)
    assert [task.wait(HANG) for task in started] == [138, 0]
    assert len(rows(metrics)) < 60
    assert [task.wait(HANG) for task in tasks("--ckpt_path", "last")] == [0, 0]
    same("one", "two")
