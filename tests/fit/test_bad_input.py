"""A user's mistake ends in one line that says what was expected, what came and what to do; nothing is lost by it."""

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest
import torch
from command import HANG, TINY, check_refused, contents, fit, process, refused, run

from fl_lightning.datamodules.published import data_folder

MINE = """
from fl_lightning import FederatedCallback
from fl_lightning.models import ImageClassifier


class Median(FederatedCallback):
    def reduce(self, orchestrator, cohort):
        return cohort.deltas.median(0).values


class Mean(FederatedCallback):
    def reduce(self, orchestrator, cohort):
        return cohort.deltas.mean(0)


class Detached(ImageClassifier):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)["loss"].detach()


class WithoutLoss(ImageClassifier):
    def training_step(self, batch, batch_idx):
        return {"logits": self(batch[0])}
"""
TINY_FIT = ("fit", "--config", "tiny.yaml")
CHANGED = ("--resume_changed", "true")
MEANING = "means something else here, where an epoch is a round and a batch is a client: use "


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a run of two rounds in runs/tiny/version_0; copy it."""
    folder = tmp_path_factory.mktemp("trained")
    with chdir(folder):
        Path("tiny.yaml").write_text(TINY)
        fit()
    return folder


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("mine.py").write_text(MINE)


# Values outside their range

VALUES = {
    "--data.num_clients=many": r"data.num_clients: expected int.*, got many$",
    "--trainer.max_epochs=many": r"trainer.max_epochs: expected int or null, got many$",
    "--data.partition.alpha=0": r"expected alpha > 0, got 0\.0: .*0\.01",
    "--data.partition.alpha=-1": r"expected alpha > 0, got -1\.0: .*0\.01",
    "--data.participation=0": r"participation must be a share in \(0, 1\] or a whole number .*, got 0: ",
    "--data.participation=-0.5": r"participation must be a share in \(0, 1\] or a whole number .*, got -0\.5: ",
    "--data.participation=1.5": r"participation must be a share in \(0, 1\] or a whole number .*, got 1\.5: ",
    "--data.participation=5": r"participation asks for 5 clients per round, but there are 4$",
    "--data.long_tail=0.5": r"^long_tail and proxy_long_tail must be at least 1, .*, got 0.5 and 1.0$",
    "--data.proxy_source=val": r"data.*proxy_source",
    "--data.num_clients=0": "num_clients must be at least 1, got 0$",
    "--data.batch_size=0": r"batch_size .*must be at least 1, got 0",
    "--model.local_epochs=0": r"local_epochs must be positive, got 0$",
    "--model.local_epochs=1.0e308": r"local_epochs must be at most 1000000, .*, got 1e\+308$",
    "--model.local_steps=1000001": r"local_steps must be at most 1000000, .*, got 1000001$",
    "--trainer.check_val_every_n_epoch=-1": r"trainer.check_val_every_n_epoch must be at least 1, got -1$",
    "--trainer.check_val_every_n_epoch=0": r"trainer.check_val_every_n_epoch must be at least 1, got 0$",
    "--data.num_workers=-1": r"num_workers must be at least 0, got -1$",
    "--data.num_clients=1443": r"num_clients must be at most 1442, the number of training examples, got 1443: lower it",
    "--data.num_clients=10000000000000": r"num_clients must be at most 1442, ",
    "--data.num_clients=null": r"data.num_clients: expected int, got None$",
    "--data.participation=null": r"data.participation: expected int or float or null, got None$",
    "--data.participation=.nan": r"participation must be a share in \(0, 1\]",
    "--model.client.optimizer.lr=-1": r".*configure_optimizers: Invalid learning rate: -1.0$",
    "--model.client.optimizer.momentum=-1": r".*configure_optimizers: Invalid momentum value: -1.0$",
    "--model.client.network.in_features=7": (
        r"round 1: client 0 is left out: RuntimeError: .*\(32x64 and 7x512\) \(in network.1, Linear\(in_features=7, "
        r"out_features=512, bias=True\)\); so is every other one$"
    ),
    "--model.client.optimizer.lr=1.0e30": r"round 1: client 0 is left out: its update is not finite; so is every other",
    "--model.server_optimizer={class_path: torch.optim.Adam, init_args: {capturable: true}}": (
        "model.server_optimizer: If capturable=True"
    ),
    "--model.server_scheduler=torch.optim.lr_scheduler.OneCycleLR": (
        "model.server_scheduler: give a value for max_lr: --model.server_scheduler.max_lr VALUE"
    ),
    "--model.local_lr_scheduler={class_path: torch.optim.lr_scheduler.OneCycleLR, init_args: {max_lr: 1}}": (
        "model.local_lr_scheduler: You must define either total_steps OR"
    ),
    "--model.local_lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau": (
        "model.local_lr_scheduler must go by rounds alone, got ReduceLROnPlateau"
    ),
    "--model.gradient_clip_val=.inf": "gradient_clip_val must be positive and finite, or null for none, got inf$",
    "--trainer.default_root_dir=tiny.yaml/x": r"Not a directory: tiny.yaml/x/tiny/version_0: name another path",
    "--model.clients_at_once=0": "clients_at_once must be at least 1, got 0$",
    "--model.clients_at_once=some": "model.clients_at_once: expected .*auto.*, got some$",
    "--model.on_bad_update=ignore": r"model.on_bad_update: .*skip.*raise.*ignore",
}


@pytest.mark.parametrize("argument", VALUES)
def test_value_out_of_range(argument: str) -> None:
    assert re.match(VALUES[argument], refused(*TINY_FIT, argument))


def test_epochs_and_steps_at_once() -> None:
    message = refused(*TINY_FIT, "--model.local_epochs", 2, "--model.local_steps", 3)
    assert message == "give local_epochs or local_steps, got both: 2 and 3"


@pytest.mark.parametrize("root", [[], ["--data.root", "images"]])
def test_data_that_is_not_there(root: list[str], tmp_path: Path) -> None:
    """Says what it looked for, where, and how to get it, and begins nothing."""
    folder = tmp_path / root[-1] if root else data_folder()
    message = refused("fit", "--config", "mnist_gh.yaml", *root, "--data.download", "false")
    assert f"expected MNIST in {folder}/MNIST/raw (train-images-idx3-ubyte, " in message
    assert f"or as an image folder {{train,test}}/<class>/* in {folder}/MNIST or {folder}" in message
    assert "--data.download true" in message
    assert not Path("runs").exists()


OWN_DATA = {  # that are not there
    "ImageFolder": (("root=nope", "image_size=8", "cache=null"), "expected an image folder {train,test}"),
    "BoxFolder": (("root=nope",), "expected png or jpg images in "),
    "Tensors": (("path=nope.npz",), "expected an npz file of plain arrays in "),
    "Table": (("train=nope.csv", "client=a", "target=b"), "expected a CSV or parquet file in "),
}


@pytest.mark.parametrize("name", OWN_DATA)
def test_data_of_your_own_that_are_not_there(name: str, tmp_path: Path) -> None:
    """No run folder is begun for them."""
    options, words = OWN_DATA[name]
    message = refused("fit", "--config", "digits_gh.yaml", "--data", name, *(f"--data.{each}" for each in options))
    assert message.startswith(words)
    assert str(tmp_path / "nope") in message
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


# What does not fit together


def test_fedlaw_without_proxy_set() -> None:
    message = refused(*TINY_FIT, "--trainer.callbacks+=FedLAW")
    assert message.startswith("FedLAW learns on a proxy set, but Digits has none: set data.proxy_per_class")


def test_a_data_module_without_clients() -> None:
    Path("bare.yaml").write_text(TINY[: TINY.index("data:")] + "data: {}\n")
    assert (
        refused("fit", "--config", "bare.yaml")
        == "FederatedDataModule has no num_clients: define it, or choose another"
    )


def test_two_reducers() -> None:
    """Either alone is fine."""
    message = refused(*TINY_FIT, "--trainer.callbacks+=mine.Median", "--trainer.callbacks+=mine.Mean")
    assert message == "Median and Mean do not go together: both replace the weighted sum of updates; keep one"
    fit("--trainer.callbacks+=mine.Median", "--trainer.max_epochs", 1)


def test_network_output_of_the_wrong_size() -> None:
    message = refused(*TINY_FIT, "--model.client.network.num_classes", 7)
    assert re.match(r"TwoNN gives an output of shape \(\d+, 7\), expected \(batch, 10\): set .*num_classes", message)


def test_data_with_another_number_of_classes() -> None:
    message = refused(*TINY_FIT, "--model.client.num_classes", 7)
    assert message.startswith("the data has 10 classes, the model 7: set model.client.num_classes")


@pytest.mark.parametrize(("name", "got"), [("Detached", "a loss without a gradient"), ("WithoutLoss", "NoneType")])
def test_training_step_without_a_gradient(name: str, got: str) -> None:
    message = refused(*TINY_FIT, "--model.client", f"mine.{name}")
    assert message.startswith(f"{name}.training_step must return a loss that depends on the parameters")
    assert f"got {got}: " in message


FLAGS = {
    "gradient_clip_val=1": "model.gradient_clip_val",
    "accumulate_grad_batches=2": "model.accumulate_grad_batches",
    "limit_train_batches=2": "data.participation",
    "limit_train_batches=1": "data.participation",
    "limit_train_batches=0.5": "data.participation",
    "val_check_interval=2": "trainer.check_val_every_n_epoch",
    "val_check_interval=1": "trainer.check_val_every_n_epoch",
    "val_check_interval=0.5": "trainer.check_val_every_n_epoch",
    "overfit_batches=1": "data.participation",
    "overfit_batches=0.5": "data.participation",
    "precision=bf16-true": "bf16-mixed",
    "sync_batchnorm=true": "sync_batchnorm=False",
}


@pytest.mark.parametrize("flag", FLAGS)
def test_trainer_flag_that_means_something_else(flag: str) -> None:
    """A whole 1 is one batch, of one client, where 1.0 is all of them."""
    message = refused(*TINY_FIT, f"--trainer.{flag}")
    assert message.startswith(f"trainer.{flag.split('=')[0]}")
    assert MEANING + FLAGS[flag] in message


def test_the_same_flags_at_their_defaults_are_fine() -> None:
    fit("--trainer.limit_train_batches=1.0", "--trainer.val_check_interval=1.0", "--trainer.overfit_batches=0.0")


def test_ddp_on_one_device_is_no_traceback() -> None:
    """With one device there is nothing to split: it runs, or is refused in one line."""
    result = run(*TINY_FIT, "--trainer.strategy", "ddp")
    if result.status:
        check_refused(result)


# Checkpoints


@pytest.fixture
def last(trained: Path, tmp_path: Path) -> Path:
    """The last.ckpt of a run of two rounds in the working directory."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return Path("runs", "tiny", "version_0", "checkpoints", "last.ckpt")


def test_missing_checkpoint(last: Path) -> None:
    before = contents()
    message = refused(*TINY_FIT, "--ckpt_path", "nowhere.ckpt")
    assert message == "ckpt_path: there is no file nowhere.ckpt; expected a path to a .ckpt, or 'last'"
    message = refused(*TINY_FIT, "--ckpt_path", "last", "--experiment", "other")
    assert message.startswith(
        "ckpt_path: last looks for runs/other/*/checkpoints/last.ckpt, but there is no such file: start"
    )
    assert contents() == before


@pytest.mark.parametrize(
    ("name", "more"),
    [("a/../../outside", []), ("{folder}/outside", []), (".", []), ("../outside", ["--ckpt_path", "last"])],
)
def test_an_experiment_lies_below_the_root(last: Path, name: str, more: list[str]) -> None:
    before = set(Path.cwd().parent.rglob("*"))
    name = name.format(folder=Path.cwd().parent)
    message = refused(*TINY_FIT, "--experiment", name, *more)
    assert message.startswith(
        f"experiment must name a folder below trainer.default_root_dir, got {name}: give the name"
    )
    assert set(Path.cwd().parent.rglob("*")) == before


DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "cut at the end": lambda content: content[:-100],
    "random": lambda content: os.urandom(4096),
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("command", ["fit", "test"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint(damage: str, command: str, last: Path) -> None:
    last.write_bytes(DAMAGES[damage](last.read_bytes()))
    before = contents()
    message = refused(command, "--config", "tiny.yaml", "--ckpt_path", last)
    assert message == (
        f"ckpt_path: {last} cannot be read, it is damaged or not a checkpoint: use another one of the run's checkpoints"
    )
    assert contents() == before


def test_damaged_last_checkpoint_by_its_short_name(last: Path) -> None:
    last.write_bytes(last.read_bytes()[:1000])
    last.with_name("best.ckpt").unlink()
    before = contents()
    message = refused(*TINY_FIT, "--ckpt_path", "last", "--trainer.max_epochs", 3)
    assert message.startswith(f"ckpt_path: {last} cannot be read")
    assert contents() == before


def test_flipped_bytes_in_a_checkpoint(last: Path) -> None:
    """The archive's directory is whole, a tensor is not: its checksum tells."""
    content = bytearray(last.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
    last.write_bytes(content)
    before = contents()
    assert refused(*TINY_FIT, "--ckpt_path", last).startswith(f"ckpt_path: {last} cannot be read")
    assert contents() == before


def test_checkpoint_of_something_else(last: Path) -> None:
    torch.save({"state_dict": {}}, "plain.ckpt")
    message = refused(*TINY_FIT, "--ckpt_path", "plain.ckpt")
    assert message == "ckpt_path: plain.ckpt is a checkpoint, but not of a federated run: it has no rounds_done"
    torch.save(torch.nn.Linear(1, 1), "pickled.ckpt")
    assert refused(*TINY_FIT, "--ckpt_path", "pickled.ckpt").startswith("ckpt_path: pickled.ckpt cannot be read")
    torch.save([1], "list.ckpt")
    assert refused(*TINY_FIT, "--ckpt_path", "list.ckpt").startswith("ckpt_path: list.ckpt ")


OTHER_MODELS = {
    "another size": (
        ["--model.client.network.in_features", "100"],
        "network.1.weight has (512, 64) there and (512, 100) here",
    ),
    "another network": (
        ["--model.client.network", "TwoLayerCNN"],
        "network.features.0.weight has no such tensor there and (32, 3, 5, 5) here",
    ),
}


@pytest.mark.parametrize("command", ["fit", "test"])
@pytest.mark.parametrize("other", OTHER_MODELS)
def test_checkpoint_of_another_model(other: str, command: str, last: Path) -> None:
    """The run folder keeps its config.yaml too: the message points to it."""
    options, difference = OTHER_MODELS[other]
    options = [*options, *(CHANGED if command == "fit" else ())]
    before = contents()
    message = refused(command, "--config", "tiny.yaml", "--ckpt_path", last, *options)
    assert message.startswith(f"the checkpoint is of another model: {difference}; start with the config")
    assert contents() == before


@pytest.mark.parametrize(
    "mistake", ["--trainer.gradient_clip_val=1", "--data.participation=5", "--trainer.callbacks+=FedLAW"]
)
def test_failed_continuation_leaves_the_run_as_it_was(mistake: str, last: Path) -> None:
    before = contents()
    refused(*TINY_FIT, "--ckpt_path", "last", "--trainer.max_epochs", 3, mistake, *CHANGED)
    assert contents() == before


# The process


def test_console_script_says_one_line() -> None:
    done = process(*TINY_FIT, "--data.participation", 2.5)
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith("fl-lightning: error: participation must be a share in (0, 1]")


def test_plain_ddp_on_two_devices() -> None:
    """It would split each client's batches. Two processes, and still one line."""
    done = process(*TINY_FIT, "--trainer.devices", 2, "--trainer.strategy", "ddp")
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("fl-lightning: error:")]
    assert f"trainer.strategy=DDPStrategy {MEANING}strategy: client_parallel" in line
    assert "round 1" not in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("trainer.devices", -3, "trainer: `devices` selected with `CPUAccelerator` should be an int > 0"),
        ("trainer.accelerator", "xyz", "trainer: You selected an invalid accelerator name"),
        ("trainer.num_nodes", 0, "trainer: `num_nodes` must be a positive integer, but got 0"),
        ("trainer.strategy", "abc", "trainer: You selected an invalid strategy name"),
        ("seed_everything", -1, "seed_everything: -1 is not in bounds"),
        ("num_threads", 0, "num_threads must be at least 1, got 0"),
        ("model.client.num_classes", 1, "config: Expected argument `num_classes` to be an integer larger than 1"),
    ],
)
def test_a_value_that_a_library_refuses(option: str, value: object, said: str) -> None:
    assert said in refused(*TINY_FIT, f"--{option}", value)


@contextmanager
def limit(kind: int, value: int) -> Iterator[None]:
    """Limit what this process may take."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@pytest.mark.parametrize("size", [100, 1000, 5000, 300_000])
def test_no_room_for_a_file(size: int, tmp_path: Path) -> None:
    """The limit ends the run at the partition, the config, the first checkpoint. With room, the run is what it was."""
    with limit(resource.RLIMIT_FSIZE, size):
        result = run(*TINY_FIT)
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert re.match(
        "fl-lightning: error: (File too large|No space left on device): free disk space; saved rounds are kept",
        result.err,
    )
    fit("--experiment", "again")
    fit("--experiment", "whole")
    again, whole = (Path("runs", name, "version_0", "metrics.csv").read_bytes() for name in ("again", "whole"))
    assert again == whole


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


def test_a_folder_that_cannot_be_written(last: Path, tmp_path: Path) -> None:
    """An evaluation prints its result and says that it keeps none; a fit is refused."""
    if os.geteuid():
        pytest.skip("root can take another user's place")
    for path in (tmp_path, *tmp_path.parents[:3]):  # pytest makes three levels, all of them for root alone
        path.chmod(0o755)
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


def test_whoever_reads_the_output_may_leave(last: Path) -> None:
    command = f"{Path(sys.executable).with_name('fl-lightning')} report runs"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command.split(), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=HANG)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_error_of_the_system_in_the_users_own_code_keeps_its_traceback() -> None:
    Path("own.py").write_text(
        "import fl_lightning.datamodules as d\n\nclass Mine(d.Digits):\n    def load(self, train):\n"
        "        open('no')\n"
    )
    with pytest.raises(FileNotFoundError):
        run(*TINY_FIT, "--data", "own.Mine")


def test_an_error_in_the_users_own_code_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line in it that calls the library is what the user looks for."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("data.py").write_text(
        "import fl_lightning.datamodules as d\n\nclass Mine(d.Digits):\n    def __init__(self):\n        int('x')\n"
    )
    with pytest.raises(ValueError, match="invalid literal"):
        run(*TINY_FIT, "--data", "data.Mine")
    Path("own.py").write_text(
        "from torch import nn\n\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(-1, 2)\n"
    )
    with pytest.raises(RuntimeError):
        run(*TINY_FIT, "--model.client.network", "own.Net")
