"""A user's mistake ends in one line that says what was expected, what came and what to do; nothing is lost by it."""

import os
import re
import resource
import shutil
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from lib.command import TINY, contents, fit, limit, process, refused, run
from lightning import Trainer

from fl_lightning import ConfigurationError
from fl_lightning.datamodules.images.published import data_folder
from fl_lightning.engine.checks import check_trainer
from fl_lightning.fit.read_config import config_of

MINE = """
import fl_lightning.datamodules as d
from fl_lightning.models import ImageClassifier
from torch import nn

class WithoutLoss(ImageClassifier):
    def training_step(self, batch, batch_idx):
        return {"logits": self(batch[0])}

class NoFile(d.Digits):
    def load(self, train):
        open("no")

class NoNumber(d.Digits):
    def __init__(self):
        int("x")

class NoNetwork(nn.Linear):
    def __init__(self):
        super().__init__(-1, 2)
"""
TINY_FIT = ("fit", "--config", "tiny.yaml")
MEANING = "means something else here, where an epoch is a round and a batch is a client: use "


@pytest.fixture(autouse=True)
def _mine() -> None:
    Path("mine.py").write_text(MINE)


# Values outside their range

PARSED = {  # refused by the parser
    "--data.num_clients=many": r"data.num_clients: expected int.*, got many$",
    "--trainer.max_epochs=many": r"trainer.max_epochs: expected int or null, got many$",
    "--data.num_clients=null": r"data.num_clients: expected int, got None: give --data.num_clients a value$",
    "--data.participation=null": r"data.participation: expected int or float or null, got None$",
    "--data.proxy_source=val": r"data.*proxy_source",
    "--data.partition=ClassesPerClient": "data.partition: give a value for classes: --data.partition.classes VALUE$",
    "--model.clients_at_once=some": "model.clients_at_once: expected .*auto.*, got some$",
    "--model.on_bad_update=ignore": r"model.on_bad_update: .*skip.*raise.*ignore",
    "--model.server_scheduler=torch.optim.lr_scheduler.OneCycleLR": (
        "model.server_scheduler: give a value for max_lr: --model.server_scheduler.max_lr VALUE"
    ),
}
REFUSED = {  # by the classes, by libraries, by the machine, or by the first round
    "data.partition.alpha=0": r"expected alpha > 0, got 0\.0: .*0\.01",
    "data.participation=.nan": r"participation must be a share in \(0, 1\]",
    "data.participation=5": r"participation asks for 5 clients per round, but there are 4$",
    "data.num_clients=1443": r"num_clients must be at most 1442, the number of training examples, got 1443: lower it",
    "data.num_clients=10000000000000": r"num_clients must be at most 1442, ",
    "data.batch_size=0": r"batch_size .*must be at least 1, got 0",
    "model.local_epochs=1.0e308": r"local_epochs must be positive and finite in float32, got 1e\+308$",
    "model.local_epochs=1.0e30": r"local_epochs must be at most 1000000, .*, got 1e\+30$",
    "model.local_steps=1000001": r"local_steps must be at most 1000000, .*, got 1000001$",
    "model.local_lr_scheduler={class_path: torch.optim.lr_scheduler.OneCycleLR, init_args: {max_lr: 1}}": (
        "model.local_lr_scheduler: You must define either total_steps OR"
    ),
    "model.server_optimizer={class_path: torch.optim.Adam, init_args: {capturable: true}}": (
        "model.server_optimizer: If capturable=True"
    ),
    "model.client.num_classes=1": "config: Expected argument `num_classes` to be an integer larger than 1",
    "model.client.num_classes=7": "the data has 10 classes, the model 7: set model.client.num_classes",
    "model.client.optimizer.lr=-1": r".*configure_optimizers: Invalid learning rate: -1.0$",
    "model.client.optimizer.lr=1.0e30": r"round 1: client 0 is left out: its update is not finite; so is every other",
    "model.client.network.in_features=7": (
        r"round 1: client 0 is left out: RuntimeError: .*\(32x64 and 7x512\) \(in network.1, Linear\(in_features=7, "
        r"out_features=512, bias=True\)\); so is every other one$"
    ),
    "model.client.network.num_classes=7": (
        r"TwoNN gives an output of shape \(\d+, 7\), expected \(batch, 10\): set .*num_classes"
    ),
    "model.client=mine.WithoutLoss": (
        "WithoutLoss.training_step must return a loss that depends on the parameters.*got NoneType: "
    ),
    "trainer.check_val_every_n_epoch=0": r"trainer.check_val_every_n_epoch must be at least 1, got 0$",
    "trainer.default_root_dir=tiny.yaml/x": r"Not a directory: tiny.yaml/x/tiny/version_0: name another path",
    "trainer.devices=-3": "trainer: `devices` selected with `CPUAccelerator` should be an int > 0",
    "trainer.callbacks+=FedLAW": "FedLAW learns on a proxy set, but Digits has none: set data.proxy_per_class",
    "trainer.limit_train_batches=1": f"trainer.limit_train_batches {MEANING}data.participation",  # 1.0 is all of them
    "seed_everything=-1": "seed_everything: -1 is not in bounds",
    "num_threads=0": "num_threads must be at least 1, got 0",
}


@pytest.mark.parametrize("argument", PARSED)
def test_value_that_the_parser_refuses(argument: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        config_of([*TINY_FIT[1:], argument])
    assert re.match(PARSED[argument], str(refusal.value))


@pytest.mark.parametrize("argument", REFUSED)
def test_value_out_of_range(argument: str) -> None:
    assert re.match(REFUSED[argument], refused(*TINY_FIT, f"--{argument}"))


@pytest.mark.parametrize("root", [[], ["--data.root", "images"]])
def test_data_that_is_not_there(root: list[str], tmp_path: Path) -> None:
    """Says what it looked for, where, and how to get it, and begins nothing."""
    folder = tmp_path / root[-1] if root else data_folder()
    message = refused("fit", "--config", "mnist_gh.yaml", *root, "--data.download", "false")
    assert f"expected MNIST in {folder}/MNIST/raw (train-images-idx3-ubyte, " in message
    assert f"or as an image folder {{train,test}}/<class>/* in {folder}/MNIST or {folder}" in message
    assert "--data.download true" in message
    assert not Path("runs").exists()


def test_a_run_that_fails_before_it_writes_leaves_no_folder() -> None:
    """Of its own, even if the run folder had been taken; the folders of earlier runs stay."""
    broken = [*TINY_FIT, "--data.partition=ClassesPerClient", "--data.partition.classes=11"]
    assert "expected classes <= 10" in refused(*broken)
    assert not Path("runs").exists() or not list(Path("runs").iterdir())
    fit("--trainer.max_epochs", 1)
    before = contents()
    assert "expected classes <= 10" in refused(*broken)
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["version_0"]
    assert contents() == before


def test_a_fit_of_no_rounds_names_no_run_folder() -> None:
    assert "run folder" not in fit("--trainer.max_epochs", 0).out
    assert not Path("runs/tiny").exists()
    assert "run folder: runs/tiny/version_0" in fit("--trainer.max_epochs", 1).out


def test_a_data_module_without_clients() -> None:
    Path("bare.yaml").write_text(TINY[: TINY.index("data:")] + "data: {}\n")
    assert (
        refused("fit", "--config", "bare.yaml")
        == "FederatedDataModule has no num_clients: define it, or choose another"
    )


FLAGS: dict[str, tuple[dict[str, Any], str]] = {  # of the Trainer, and what to use in their place
    "clip": ({"gradient_clip_val": 1}, "model.gradient_clip_val"),
    "accumulate": ({"accumulate_grad_batches": 2}, "model.accumulate_grad_batches"),
    "limit": ({"limit_train_batches": 0.5}, "data.participation"),
    "overfit": ({"overfit_batches": 0.5}, "data.participation"),
    "interval": ({"val_check_interval": 0.5}, "trainer.check_val_every_n_epoch"),
    "precision": ({"precision": "bf16-true"}, "bf16-mixed"),
    "norm": ({"sync_batchnorm": True}, "sync_batchnorm=False"),
    "strategy": ({"strategy": "ddp", "devices": 2}, "strategy: client_parallel"),
}


@pytest.mark.parametrize("what", FLAGS)
def test_trainer_flag_that_means_something_else(what: str) -> None:
    flags, use = FLAGS[what]
    with pytest.raises(ConfigurationError, match=re.escape(MEANING + use)) as refusal:
        check_trainer(Trainer(**{"accelerator": "cpu", "logger": False} | flags))
    assert str(refusal.value).startswith(f"trainer.{next(iter(flags))}")
    check_trainer(Trainer(logger=False, limit_train_batches=1.0, val_check_interval=1.0, overfit_batches=0.0))


# Checkpoints


OTHER = "the checkpoint is of another model: {}; start with the config"
CHECKPOINTS = {  # the command and its options, and how the message begins
    "fit --ckpt_path nowhere.ckpt": "there is no file nowhere.ckpt; expected a path to a .ckpt, or 'last'",
    "fit --ckpt_path last --experiment other": (
        "last looks for runs/other/*/checkpoints/last.ckpt, but there is no such file: start"
    ),
    "fit --ckpt_path last --experiment ../outside": (
        "experiment must name a folder below trainer.default_root_dir, got ../outside: give the name"
    ),
    "fit --ckpt_path damaged.ckpt": "damaged.ckpt cannot be read, it is damaged or not a checkpoint: use another one",
    "test --ckpt_path damaged.ckpt": "damaged.ckpt cannot be read, it is damaged or not a checkpoint: use another one",
    "fit --ckpt_path plain.ckpt": "plain.ckpt is a checkpoint, but not of a federated run: it has no rounds_done",
    "fit --ckpt_path pickled.ckpt": "pickled.ckpt cannot be read",
    "fit --ckpt_path list.ckpt": "list.ckpt ",
    "fit --ckpt_path last --resume_changed true --model.client.network.in_features 100": OTHER.format(
        "network.1.weight has (512, 64) there and (512, 100) here"
    ),
    "test --ckpt_path last --model.client.network TwoLayerCNN": OTHER.format(
        "network.features.0.weight has no such tensor there and (32, 3, 5, 5) here"
    ),
    "fit --ckpt_path last --resume_changed true --trainer.max_epochs 3 --data.participation 5": (
        "participation asks for 5 clients"
    ),
}


@pytest.mark.parametrize("line", CHECKPOINTS)
def test_a_checkpoint_that_does_not_fit_leaves_the_run_as_it_was(line: str, last: Path) -> None:
    Path("damaged.ckpt").write_bytes(last.read_bytes()[:1000])
    for name, content in {"plain": {"state_dict": {}}, "pickled": torch.nn.Linear(1, 1), "list": [1]}.items():
        torch.save(content, f"{name}.ckpt")
    before = contents()
    command, *options = line.split()
    message = refused(command, "--config", "tiny.yaml", *options)
    assert message.removeprefix("ckpt_path: ").startswith(CHECKPOINTS[line])
    assert contents() == before
    assert not Path("outside").exists()


# The process


@pytest.mark.slow
def test_plain_ddp_on_two_devices() -> None:
    """It would split each client's batches. Two processes, and still one line."""
    done = process(*TINY_FIT, "--trainer.devices", 2, "--trainer.strategy", "ddp")
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("fl-lightning: error:")]
    assert f"trainer.strategy=DDPStrategy {MEANING}strategy: client_parallel" in line
    assert "round 1" not in done.stdout


@pytest.mark.parametrize("size", [1000, 300_000])
def test_no_room_for_a_file(size: int, trained: Path) -> None:
    """The limit ends the run at the config, and at the first checkpoint. With room, the run is what it was."""
    with limit(resource.RLIMIT_FSIZE, size):
        result = run(*TINY_FIT)
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert re.match(
        "fl-lightning: error: (File too large|No space left on device): free disk space; saved rounds are kept",
        result.err,
    )
    fit("--experiment", "again")
    again, whole = (Path(folder, "version_0", "metrics.csv") for folder in ("runs/again", trained / "runs/tiny"))
    assert again.read_bytes() == whole.read_bytes()


def test_no_room_for_one_clients_state_ends_the_run() -> None:
    """A client that is left out instead would silently change the result."""
    with limit(resource.RLIMIT_FSIZE, 5000):
        result = run(*TINY_FIT, "--trainer.callbacks+=Scaffold", "--model.client_states", "disk")
    assert result.status == 2
    assert "File too large" in result.err
    assert not [text for text in result.warnings if "left out" in text]


def test_no_memory() -> None:
    said = refused(
        *TINY_FIT, "--model.client.network=MultilayerPerceptron", "--model.client.network.hidden=[900000,900000]"
    )
    assert "can't allocate memory" in said


def test_predict_without_data_names_what_there_is(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    told = "predict_dataloader of the data module or the client module, and Digits and ImageClassifier have none: fl-l"
    assert told in refused("predict", "--config", "tiny.yaml", "--ckpt_path", "last")


def test_a_folder_that_cannot_be_written(trained: Path) -> None:
    """An evaluation prints its result and says that it keeps none; a fit is refused."""
    if os.geteuid():
        pytest.skip("root can take another user's place")
    with TemporaryDirectory() as folder, chdir(folder):  # the folders of pytest are for root alone
        shutil.copytree(trained, folder, dirs_exist_ok=True)
        Path(folder).chmod(0o755)
        os.seteuid(65534)
        try:
            tested = run("test", "--config", "tiny.yaml", "--ckpt_path", "last")
            fitted = run(*TINY_FIT, "--ckpt_path", "last", "--trainer.max_epochs", 3)
        finally:
            os.seteuid(0)
    assert tested.status == 0, tested.err
    assert "test/top1" in tested.out
    assert "runs/tiny/version_0 cannot be written and stays as it is: Permission denied" in tested.warnings
    assert (fitted.status, fitted.err.count("\n")) == (2, 1)
    assert re.search(r"Permission denied: \S*runs/tiny/version_0/", fitted.err)


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("--data=mine.NoFile", FileNotFoundError),
        ("--data=mine.NoNumber", ValueError),
        ("--model.client.network=mine.NoNetwork", RuntimeError),
    ],
)
def test_an_error_in_the_users_own_code_keeps_its_traceback(option: str, error: type[Exception]) -> None:
    """Of the system, or of a library: the line in it that calls them is what the user looks for."""
    with pytest.raises(error):
        run(*TINY_FIT, option)
