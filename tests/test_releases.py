"""Earlier releases: each one's run goes on, and its finished runs are known again, whatever arguments came since.

The folder releases holds, for each of them, a run folder and the arguments of the public classes, as
``tools/signatures.py`` prints them there.
"""

import inspect
import shutil
from pathlib import Path
from typing import Any

import pytest
import signatures
import yaml
from lib.command import fit, refused, rows

from fl_lightning.fit.read_config import config_of
from fl_lightning.later import later_arguments
from fl_lightning.runs.config.earlier import GONE, class_at
from fl_lightning.runs.config.settings import settings_fingerprint

RELEASES = Path(__file__).parent / "releases"
RUN = Path("runs/tiny/version_0")
EARLIER = "fl_lightning/runs/config/earlier.py"
CONFIG, LAST = RUN / "config.yaml", RUN / "checkpoints/last.ckpt"
# val/loss of round 3 where the release itself went on with its run of two rounds.
THIRD = {"0.1.0": 1.083263, "0.2.0": 0.6810205, "0.3.0": 0.6810205, "0.4.0": 0.6810205}
FIRST = "0.3.0"  # the first release whose arguments are known
PLAIN = """
trainer: {max_epochs: 2, callbacks: [{class_path: FedAvgM}, {class_path: ConflictMonitor}]}
model:
  client:
    class_path: ImageClassifier
    init_args:
      network: {class_path: TwoNN, init_args: {in_features: 64}}
      optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
"""
# Fingerprints as 0.3.0 computed them: of each class whose arguments came later, and of some others.
FINGERPRINTS = {
    "digits_gh.yaml": "834bf44248ac65ed",
    "cifar10_gh.yaml": "ca14283bdf1b130b",
    "papers/fedgh-slides/table-5.yaml": "8e23d65027ed7d77",
    "plain.yaml --data=MNIST": "5fe59a7a680bb4fb",
    "plain.yaml --data=TinyImageNet": "3066fed730b7ac9e",
    "plain.yaml --data=EMNIST": "7839b5700e8bf7b0",
    "plain.yaml --data=ImageFolder --data.root=images --data.image_size=8": "41ac90b7b70f714a",
    "plain.yaml --data=BoxFolder": "8d974bee5be1986f",
    "plain.yaml --data=Tensors --data.path=arrays.pt": "3d5436923e68baf3",
    "plain.yaml --data=Table --data.train=table.csv --data.target=y": "1fe04f3fad7d1745",
    "plain.yaml --data=HuggingFace --data.train=table.csv": "a075ccb690dd07c0",
    "plain.yaml --data=FlowerDatasets --data.source=partitions": "0b4621a786478d67",
    "plain.yaml --data=PartitionedData --data.datamodule=lightning.pytorch.demos.boring_classes.BoringDataModule": (
        "6e75742fb1f87805"
    ),
    "plain.yaml --data=Digits --data.partition=IID --data.sampler=SizeSampler": "92bd3032b2cbca54",
    "plain.yaml --data=Digits --model.client.network=TimmNetwork --model.client.network.name=resnet18": (
        "27b6faca6abd8db0"
    ),
}

GONE_NAMES = {("fl_lightning.callbacks", "ShamCorrection")}  # since 0.3.0; CHANGELOG.md says what takes their place


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


# Arguments that came later


def described(name: str) -> dict[str, dict[str, Any]]:
    """The arguments of each public class in a release."""
    return dict(yaml.safe_load((RELEASES / name / "arguments.yaml").read_text()))


@pytest.mark.parametrize("release", sorted(path.parent.name for path in RELEASES.glob("*/arguments.yaml")))
def test_arguments_that_came_later_are_declared(release: str) -> None:
    """Else every finished run of the class would be trained again, since its config lacks the argument."""
    now = signatures.public_arguments()
    gone = {(argument.cls, argument.name) for argument in GONE}
    mistakes = []
    for path, before in described(release).items():
        cls = class_at(path)
        if cls is None or path not in now:
            mistakes.append(f"{path} is gone, which configs of {release} name: let the path lead to what replaces it")
            continue
        declared = later_arguments(cls)
        for name, default in now[path].items():
            if name not in before and name not in declared:
                mistakes.append(
                    f"{owner(cls, name)} takes {name}, which {release} lacks: let its default do as before, and "
                    f"declare it above the constructor, @later({name}={default!r})"
                )
            if name in before and name in declared and release == FIRST:  # later than that one
                mistakes.append(f"{path} had {name} in {release}: its own constructor must name it, without @later")
            if name in declared and plain(default) != plain(declared[name]):
                mistakes.append(
                    f"{owner(cls, name)} declares {name}={declared[name]!r} by @later, and its default is {default!r}: "
                    f"a run of {release}, whose config lacks it, would go on as another one; keep the default"
                )
        for name in before:
            if name not in now[path] and (path, name) not in gone:
                mistakes.append(f"{path} lacks {name}, which {release} has: add it to GONE, {EARLIER}")
    assert not mistakes, "\n" + "\n".join(dict.fromkeys(mistakes))


@pytest.mark.parametrize("release", sorted(path.parent.name for path in RELEASES.glob("*/names.yaml")))
def test_public_names_stay(release: str) -> None:
    """As docs/reference/names.md promises."""
    before = yaml.safe_load((RELEASES / release / "names.yaml").read_text())
    now = signatures.public_names()
    gone = {(kind, name) for kind, names in before.items() for name in names if name not in now[kind]}
    assert gone <= GONE_NAMES


def owner(cls: type, name: str) -> str:
    """The class among a class's bases, or itself, whose constructor names an argument."""
    for base in cls.__mro__:
        constructor = vars(base).get("__init__")
        if constructor is not None and name in inspect.signature(constructor).parameters:
            return base.__name__
    return cls.__name__


def plain(value: Any) -> Any:
    """A default as a config holds it."""
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("options", FINGERPRINTS)
def test_finished_runs_of_0_3_0_are_known_again(options: str) -> None:
    Path("plain.yaml").write_text(PLAIN)
    config = config_of(f"--config={options}".split())
    assert settings_fingerprint(config) == FINGERPRINTS[options]


# Runs that go on


def restore(release: str) -> None:
    """Put a release's run into the working directory, and the module that its config names, if any."""
    shutil.copytree(RELEASES / release / "run", RUN)
    for module in (RELEASES / release).glob("*.py"):
        shutil.copy(module, ".")


@pytest.mark.parametrize("release", THIRD)
def test_a_run_of_a_release_goes_on_by_its_own_config(release: str) -> None:
    """As the release itself went on, to all digits of metrics.csv, and no setting counts as changed."""
    restore(release)
    fit("--ckpt_path", LAST, "--trainer.max_epochs", 3, config=str(CONFIG))
    last = rows(RUN / "metrics.csv")[-1]
    assert (last["round"], last["val/loss"]) == (3, pytest.approx(THIRD[release], rel=1e-6))
    (resumed,) = yaml.safe_load((RUN / "environment.yaml").read_text())["resumed"]
    assert "changed" not in resumed


def with_value(option: str, before: str, value: str) -> None:
    """Restore the run of 0.2.0 as if it had another value of an option that is gone."""
    restore("0.2.0")
    text = CONFIG.read_text()
    assert text.count(f"{option}: {before}\n") == 1
    CONFIG.write_text(text.replace(f"{option}: {before}\n", f"{option}: {value}\n"))


@pytest.mark.parametrize(
    ("option", "before", "value", "name", "reason"),
    [
        ("local_graph", "false", "true", "model.local_graph is True", "local steps are no longer captured"),
        ("convention", "heavy ball", "ema", "FedAvgM.convention is ema", "model.server_optimizer has other momenta"),
    ],
)
def test_a_gone_option_that_was_no_default_is_refused_with_the_reason(
    option: str, before: str, value: str, name: str, reason: str
) -> None:
    """By the run's own config, and by a copy without it; there, the user may go on, which is recorded."""
    with_value(option, before, value)
    message = refused("fit", "--config", CONFIG, "--ckpt_path", LAST, "--trainer.max_epochs", 3)
    assert message.startswith(f"{CONFIG}: {name} there, and gone: {reason}")
    lines = CONFIG.read_text().splitlines()
    gone = ("local_graph:", "convention:")
    Path("copy.yaml").write_text("\n".join(line for line in lines if not line.strip().startswith(gone)))
    again = ("fit", "--config", "copy.yaml", "--ckpt_path", LAST, "--trainer.max_epochs", 3)
    option_name = name.split()[0]
    assert f"trained with other settings: {option_name} (" in refused(*again)
    fit(*again[3:], "--resume_changed", "true", config="copy.yaml")
    (resumed,) = yaml.safe_load((RUN / "environment.yaml").read_text())["resumed"]
    assert list(resumed["changed"]) == [option_name]


def test_a_config_of_ones_own_keeps_the_hint() -> None:
    """Also one that is called config.yaml, or a copy of a run's: its user can mend it."""
    restore("0.2.0")
    Path("own").mkdir()
    copied = shutil.copy(CONFIG, "own")
    message = refused("fit", "--config", copied)
    assert message == (
        "trainer.callbacks: there is no option convention; leave it out: model.server_optimizer has other momenta"
    )
