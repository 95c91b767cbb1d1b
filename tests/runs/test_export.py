"""The model out of a run: each kind of file gives the run's module back to code that knows nothing of the run."""

import importlib
import logging
import re
import shutil
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from lib.command import TINY, fit, refused, run
from lib.toy import Net, Same, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn

import fl_lightning
from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.models import ImageClassifier

RUN = Path("runs", "tiny", "version_0")
IMAGES = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
MINE = '''
import torch
from lightning.pytorch import LightningModule
from torch import nn


class Base(LightningModule):
    """Digits by a frozen body and a head that learns."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 8).requires_grad_(False), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).tanh())

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Saved(Base):
    """Saves its hyper-parameters, one of which is no plain value, and changes one of them."""

    def __init__(self, layer: nn.Module, scale: float = 1.0, note: str = "none"):
        super().__init__()
        self.save_hyperparameters()
        self.layer, self.scale = layer, scale
        self.hparams.scale = self.scale = 3.0

    def forward(self, x):
        return super().forward(x) * self.scale


class Whole(Base):
    """Saves the content of its one argument as hyper-parameters."""

    def __init__(self, hparams: dict):
        super().__init__()
        self.save_hyperparameters(hparams)
        self.width = hparams["width"]


class Stripped(Base):
    """Leaves the body out of checkpoints; adds an entry of its own, and reads it."""

    strict_loading = False

    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if "body" not in k}
        checkpoint["extra"] = torch.tensor(7)

    def on_load_checkpoint(self, checkpoint):
        self.extra = checkpoint["extra"]


class Keywords(Base):
    def __init__(self):
        super().__init__()
        self.example_input_array = {"first": torch.zeros(2, 64), "second": torch.zeros(2, 64)}

    def forward(self, first, second=None):
        return super().forward(first if second is None else first + second)


class WithObject(Base):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["object"] = nn.Identity()


class Odd(Base):
    """Has a state that is no tensor, and a forward that cannot be exported."""

    def forward(self, x):
        return super().forward(x) * (1 if x.sum().item() > 0 else 2)

    def get_extra_state(self):
        return {"seen": 1}

    def set_extra_state(self, state):
        pass
'''


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two rounds, as RUN names it."""
    with chdir(folder := tmp_path_factory.mktemp("digits")):
        Path("tiny.yaml").write_text(TINY)
        fit()
    return folder


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("mine.py").write_text(MINE)


def fit_mine(name: str, *args: object, **arguments: Any) -> Any:
    """Train a class of mine.py for a round; the class."""
    before, _, after = TINY.partition("model:")
    client = f"model:\n  client: {{class_path: mine.{name}, init_args: {arguments}}}\ndata:"
    Path("mine.yaml").write_text(before + client + after.partition("data:")[2])
    fit("--trainer.max_epochs", 1, "--experiment", "tiny", *args, config="mine.yaml")
    importlib.invalidate_caches()
    return getattr(importlib.import_module("mine"), name)


def export(out: str, *args: object, source: Path = RUN) -> None:
    result = run("export", source, "--out", out, *args)
    assert result.status == 0, result.err
    assert re.fullmatch(rf"model: {re.escape(out)}, from \S+\.ckpt\n", result.out)


def tensors(source: Path = RUN / "checkpoints/last.ckpt") -> dict[str, Tensor]:
    """The client module's tensors in a run's checkpoint, under its own names."""
    state = torch.load(source)["state_dict"]
    return {name.removeprefix("client."): value for name, value in state.items()}


def equal(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# Each kind of file


def test_every_kind_gives_the_same_model(digits: Path) -> None:
    """With torch's defaults; the network and the optimizer are made from the run's config.yaml."""
    shutil.copytree(digits, ".", dirs_exist_ok=True)
    for name in ("m.ckpt", "m.pt", "m.safetensors", "m.pt2"):
        export(name)
    module: Any = ImageClassifier.load_from_checkpoint("m.ckpt").eval()
    assert type(module.network).__name__ == "TwoNN"
    assert module.configure_optimizers().defaults["lr"] == 0.1
    for state in (module.state_dict(), torch.load("m.pt"), safetensors.torch.load_file("m.safetensors")):
        assert equal(state, tensors(RUN / "checkpoints/best.ckpt"))
    assert isinstance(LightningModule.load_from_checkpoint("m.ckpt"), ImageClassifier), "the class is inside, too"
    program: Any = torch.export.load("m.pt2").module()
    for batch in (IMAGES, IMAGES[:1]):
        assert torch.allclose(program(batch), module(batch), atol=1e-6)
    assert set(torch.load("m.ckpt")) == {
        *("epoch", "global_step", "pytorch-lightning_version", "state_dict", "hyper_parameters")
    }


def test_run_folder_is_its_best_checkpoint_or_else_its_last(digits: Path) -> None:
    shutil.copytree(digits, ".", dirs_exist_ok=True)
    best, last = (RUN / "checkpoints" / name for name in ("best.ckpt", "last.ckpt"))
    torch.save(torch.load(best) | {"state_dict": {"client.w": torch.ones(1)}}, best)
    export("best.pt")
    export("last.pt", source=last)
    best.unlink()
    export("folder.pt")
    assert equal(torch.load("best.pt"), {"w": torch.ones(1)})
    assert equal(torch.load("last.pt"), tensors(last))
    assert equal(torch.load("folder.pt"), tensors(last))


# Hyper-parameters


def test_saved_hyperparameters_go_before_the_config() -> None:
    """Scale is 3 as the module left it, the note and the layer come from the config."""
    layer = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 3}}
    cls = fit_mine("Saved", layer=layer, scale=2.0, note="mine")
    export("m.ckpt")
    inside = torch.load("m.ckpt")["hyper_parameters"]
    assert [inside[name] for name in ("scale", "note")] == [3.0, "mine"]
    module = cls.load_from_checkpoint("m.ckpt")
    assert module.layer.weight.shape == (3, 2)
    assert equal(module.state_dict(), tensors())


def test_hyperparameters_of_one_argument() -> None:
    cls = fit_mine("Whole", hparams={"width": 5})
    export("m.ckpt")
    assert cls.load_from_checkpoint("m.ckpt").width == 5


class Sized(Net):
    """Needs a network, which its checkpoints cannot hold."""

    def __init__(self, network: nn.Module, width: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters(ignore="network")
        self.extra, self.width = network, width


def checkpoint(module: LightningModule, path: Path) -> Path:
    """A checkpoint of a run that was started from Python, and has no config.yaml."""
    run = trainer(rounds=1)
    run.fit(FederatedOrchestrator(module), datamodule=Same())
    run.save_checkpoint(path)
    return path


def test_run_without_config_says_what_is_inside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = checkpoint(Sized(nn.Linear(2, 2), width=6), tmp_path / "one.ckpt")
    with caplog.at_level(logging.INFO):
        fl_lightning.export(path, "m.ckpt")
    line = "m.ckpt: hyper-parameters inside: width; pass all other arguments to load_from_checkpoint"
    assert caplog.messages[-1] == line
    module = Sized.load_from_checkpoint("m.ckpt", network=nn.Linear(2, 2))
    assert module.width == 6
    assert equal(module.state_dict(), tensors(path))


# What a module leaves out, shares or adds


def test_module_that_leaves_its_frozen_part_out() -> None:
    """The checkpoint holds the head and the module's own entry. The body of the program is the run's: it is drawn by
    the run's seed, and does not learn.
    """
    cls = fit_mine("Stripped")
    for name in ("m.ckpt", "m.safetensors", "m.pt2"):
        export(name)
    assert sorted(safetensors.torch.load_file("m.safetensors")) == ["head.bias", "head.weight"]
    module = cls.load_from_checkpoint("m.ckpt")
    assert int(module.extra) == 7
    assert equal(module.head.state_dict(), {n.removeprefix("head."): v for n, v in tensors().items()})

    torch.manual_seed(1)  # the default of --seed_everything
    module.body = nn.Linear(64, 8)
    program: Any = torch.export.load("m.pt2").module()
    assert torch.allclose(program(IMAGES), module(IMAGES), atol=1e-6)


def test_program_of_a_run_that_began_from_a_file() -> None:
    body = {name: torch.randn(shape) for name, shape in (("body.weight", (8, 64)), ("body.bias", (8,)))}
    torch.save(body, "body.pt")
    cls = fit_mine("Stripped", "--model.init_from", "body.pt")
    export("m.ckpt")
    export("m.pt2")
    module = cls.load_from_checkpoint("m.ckpt")
    module.load_state_dict(body, strict=False)
    program: Any = torch.export.load("m.pt2").module()
    assert torch.allclose(program(IMAGES), module(IMAGES), atol=1e-6)
    Path("mine.py").unlink()
    del sys.modules["mine"]
    importlib.invalidate_caches()
    assert refused("export", RUN, "--out", "n.pt2") == (
        "export: mine.Stripped cannot be made from the run's config.yaml: No module named 'mine'; from Python, pass "
        "module and example"
    )


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight


def test_shared_tensors_are_there_under_each_name(tmp_path: Path) -> None:
    """Safetensors refuses tensors that share memory."""
    path = checkpoint(Tied(), tmp_path / "one.ckpt")
    fl_lightning.export(path, "m.safetensors")
    module = Tied()
    module.load_state_dict(safetensors.torch.load_file("m.safetensors"))
    assert equal(module.state_dict(), tensors(path))


# Programs


def test_example_of_keyword_arguments() -> None:
    cls = fit_mine("Keywords")
    export("m.pt2")
    export("m.ckpt")
    module, x = cls.load_from_checkpoint("m.ckpt"), torch.randn(3, 64)
    program: Any = torch.export.load("m.pt2").module()
    assert torch.allclose(program(first=x, second=x), module(x, x), atol=1e-6)


class Forwarding(Net):
    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def between(self) -> list[nn.Module]:
        return [nn.Dropout(0.5)]


def test_program_of_a_module_and_an_example(tmp_path: Path) -> None:
    """Without dropout; the module gets the checkpoint's tensors, and stays in training mode."""
    path, module = checkpoint(Forwarding(), tmp_path / "one.ckpt"), Forwarding()
    fl_lightning.export(path, "m.pt2", module=module, example=torch.zeros(2, 4))
    assert equal(module.state_dict(), tensors(path))
    assert all(part.training for part in module.modules())
    program, x = torch.export.load("m.pt2").module(), torch.randn(6, 4)
    assert torch.allclose(program(x), module.eval()(x), atol=1e-6)  # type: ignore[operator]  # a module


# Mistakes


def test_mistakes_about_files(digits: Path) -> None:
    """One line each, before anything is written."""
    shutil.copytree(digits, ".", dirs_exist_ok=True)
    Path("there.pt").write_text("mine")
    torch.save({"state_dict": {}}, "plain.ckpt")
    Path("text.ckpt").write_text("no checkpoint")
    kinds = ".ckpt, .safetensors, .pt, .pt2"
    assert refused("export", RUN, "--out", "m.onnx") == f"export: the file must end in {kinds}, got m.onnx"
    assert refused("export", RUN, "--out", "there.pt") == "export: there.pt exists: give another name, or --overwrite"
    assert refused("export", "no.ckpt", "--out", "m.pt") == (
        "export: there is no file no.ckpt; expected a run folder, or a path to a .ckpt"
    )
    assert refused("export", "runs", "--out", "m.pt").startswith(
        "runs is a folder without checkpoints/best.ckpt and last.ckpt"
    )
    assert refused("export", "plain.ckpt", "--out", "m.pt") == (
        "export: plain.ckpt is a checkpoint, but not of a federated run: it has no rounds_done"
    )
    assert refused("export", "text.ckpt", "--out", "m.pt").startswith("export: text.ckpt cannot be read")
    assert refused("export", RUN).startswith("give one of --out, --adapter, --merge: ")
    assert Path("there.pt").read_text() == "mine"
    assert not list(Path().glob("m.*"))
    export("there.pt", "--overwrite")
    assert equal(torch.load("there.pt"), tensors(RUN / "checkpoints/best.ckpt"))


def test_forward_that_cannot_be_exported_and_state_that_is_no_tensor() -> None:
    fit_mine("Odd")
    assert refused("export", RUN, "--out", "m.pt2").startswith("export: Odd.forward cannot be exported (")
    assert refused("export", RUN, "--out", "m.safetensors") == (
        "export: safetensors hold tensors only, and _extra_state is not one: write a .pt"
    )
    assert not list(Path().glob("m.*"))
    export("m.pt")
    assert torch.load("m.pt")["_extra_state"] == {"seen": 1}


def test_program_of_a_run_without_config_needs_the_module(tmp_path: Path) -> None:
    path = checkpoint(Forwarding(), tmp_path / "one.ckpt")
    with pytest.raises(ConfigurationError, match=r"is in no run folder with a config\.yaml .* module=MyModule\(…\)"):
        fl_lightning.export(path, "m.pt2")
    with pytest.raises(ConfigurationError, match="a program needs an example input: pass example, or set"):
        fl_lightning.export(path, "m.pt2", module=Forwarding())
    with pytest.raises(ConfigurationError, match=r"the checkpoint is of another model: first\.weight has no such"):
        fl_lightning.export(path, "m.pt2", module=Tied(), example=torch.zeros(2, 4))


# Checkpoints and torch's defaults


def test_checkpoint_with_an_object_is_refused_by_its_name() -> None:
    """And read where the user asks for it, as Lightning does."""
    fit_mine("WithObject")
    last = RUN / "checkpoints/last.ckpt"
    holds = f"{last} cannot be read, it holds objects (torch.nn.modules.linear.Identity): save tensors and plain values"
    assert refused("export", last, "--out", "m.pt").startswith(f"export: {holds}")
    again = ("fit", "--config", "mine.yaml", "--trainer.max_epochs", 2, "--ckpt_path", last)
    result = run(*again)
    assert result.status == 2
    assert f"ckpt_path: {holds}" in result.err
    assert run(*again, "--weights_only", "false").status == 0


def test_what_the_data_module_does_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The scaling of a table's columns and its classes, from the config; those of a federation, as its sites told."""
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("age,dose,ill\n40,1,yes\n60,3,no\n")
    data = """
data:
  class_path: Table
  init_args: {train: table.csv, target: ill, client: null, test: table.csv SCALING}
"""
    net = "{class_path: LogisticRegression, init_args: {in_features: 2, num_classes: 2}}"
    model = f"""
trainer: {{max_epochs: 1, accelerator: cpu}}
model:
  client:
    class_path: ImageClassifier
    init_args:
      num_classes: 2
      network: {net}
      optimizer: {{class_path: torch.optim.SGD, init_args: {{lr: 0.1}}}}
"""
    settings = ", mean: [50, 2], std: [10, 1], features: [age, dose], classes: ['yes', 'no']"
    scaled = (
        "inputs are (x - mean) / std, with the mean [50.0, 2.0] and the std [10.0, 1.0] of age, dose, in this order; "
    )
    expected = {
        settings: f"{scaled}outputs are of the classes yes, no, in this order",
        "": "outputs for classes, if there are any, are in the order of its class_names",
    }
    for scaling, told in expected.items():
        Path("mine.yaml").write_text(model + data.replace("SCALING", scaling))
        assert run("fit", "--config", "mine.yaml", "--experiment", "told").status == 0
        folder = sorted(Path("runs/told").iterdir())[-1]
        with caplog.at_level(logging.INFO):
            fl_lightning.export(folder, "out.pt", overwrite=True)
        assert caplog.messages[-1] == f"not in out.pt, as it is the data module's: {told}"
    facts = '{"scaling": [[50.0, 2.0], [10.0, 1.0]], "columns": ["age", "dose"], "class_names": ["no", "yes"]}'
    (folder / "sites.json").write_text(f'{{"facts": [{facts}]}}')
    with caplog.at_level(logging.INFO):
        fl_lightning.export(folder, "out.pt", overwrite=True)
    assert caplog.messages[-1].endswith(f"data module's: {scaled}outputs are of the classes no, yes, in this order")
