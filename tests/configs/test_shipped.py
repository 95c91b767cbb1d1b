"""Every YAML that ships: it parses, says what it is, and runs a round on generated data of the right shape.

Configs that add callbacks alone to the same base run together, as far as their callbacks go together.
"""

import math
import re
import shlex
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml
from lib.command import rows, run
from lib.generated import generated_data
from lib.reported import check_documented, check_reported

import fl_lightning.callbacks
from fl_lightning import ConfigurationError
from fl_lightning.datamodules import Digits
from fl_lightning.engine.checks import check_chain, check_once, check_proxy
from fl_lightning.fit.configs import CONFIGS, bases, shipped_configs
from fl_lightning.fit.read_config import config_of

SHIPPED = [name for name in shipped_configs() if not name.startswith("papers/")]  # those: test_papers.py
DATA = Digits(proxy_per_class=10)


def added(name: str) -> list[dict[str, Any]]:
    """The callbacks that a config adds to its base; none if it does more, or if they need other classes."""
    content = dict(yaml.safe_load((CONFIGS / name).read_text()))
    callbacks: list[dict[str, Any]] = content.get("trainer", {}).pop("callbacks+", [])
    ours = all(each["class_path"] in fl_lightning.callbacks.__all__ for each in callbacks)
    plain = "class_path" not in str([*map(arguments, callbacks)])
    return callbacks if ours and plain and content == {"base": "../base/digits.yaml", "trainer": {}} else []


def arguments(callback: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a callback, with fewer epochs on the server."""
    return {
        name: min(value, 14) if name == "epochs" else value for name, value in callback.get("init_args", {}).items()
    }


def go_together(callbacks: list[dict[str, Any]]) -> bool:
    try:
        rules = [getattr(fl_lightning.callbacks, each["class_path"])(**arguments(each)) for each in callbacks]
        check_once(rules)
        check_chain(rules)
        check_proxy(rules, DATA)
    except (ConfigurationError, TypeError):  # TypeError: a config names no argument of the class, as its own run shows
        return False
    return True


def groups() -> dict[str, list[dict[str, Any]]]:
    """The callbacks of each run: those of several configs, by the configs' names joined by plus signs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in SHIPPED:
        new = added(name)
        for group, old in found.items() if new else ():
            rest = [each for each in new if each not in old]
            if together := next((each for each in ([*old, *rest], [*rest, *old]) if old and go_together(each)), []):
                del found[group]
                found[f"{group}+{name}"] = together
                break
        else:
            found[name] = new
    return found


GROUPS = groups()
# On images of the right shape, at night; by day, configs of papers train the same networks on them.
MARKS = {each: pytest.mark.slow for each in GROUPS if each.startswith(("cifar", "mnist"))}


def header(path: Path) -> str:
    """The comment that a config begins with."""
    found = re.match(r"(#[^\n]*\n)+", path.read_text())
    assert found is not None, path
    return found[0]


def launches(name: str) -> list[str]:
    """What follows ``fl-lightning fit --config NAME`` in the header of a config."""
    return re.findall(rf"^#   fl-lightning fit --config {re.escape(name)}(.*)$", header(CONFIGS / name), re.MULTILINE)


def test_there_is_a_config_for_every_method_and_data_set() -> None:
    names = {"mnist_gh.yaml", "digits_gh.yaml", "cifar10_gh.yaml", "cifar100_gh.yaml", "cifar10_fedlaw.yaml"}
    assert names | {"cifar10_fedmgc.yaml"} <= set(SHIPPED)
    assert {name for group in GROUPS for name in group.split("+")} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_begins_with_what_it_is_and_how_to_launch_it(name: str) -> None:
    """A comment: the table it comes from (or that there is none), its launch line, and one more with an override."""
    text, *below = (header(path) for path in [CONFIGS / name, *map(Path, bases(CONFIGS / name))])
    assert re.search(r"\b(Table|Tables|Fig\.|No paper reports this experiment)", text.replace("\n# ", " "))
    assert len(launches(name)) >= 2
    assert any(re.search(r"--(data|trainer|model)\.(?!root|download)", launch) for launch in launches(name)[1:])
    assert "val/*" in text + "".join(below), "the papers hold nothing out: the config must say what val/* is"


@pytest.mark.parametrize("name", SHIPPED)
def test_launch_lines_in_the_header_parse(name: str) -> None:
    """With the options of all of them at once: they are there to be copied."""
    options = [word for launch in launches(name) for word in shlex.split(launch, comments=True)]
    assert config_of([f"--config={name}", *options])["data"]["class_path"].startswith("fl_lightning.datamodules.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory of all runs; at the end, one page reports those in it."""
    with chdir(folder := tmp_path_factory.mktemp("shipped")):
        yield folder
        check_reported(Path("runs"))


@pytest.mark.parametrize("group", [pytest.param(each, id=each, marks=MARKS.get(each, ())) for each in GROUPS])
def test_runs_a_round_and_is_reported(group: str, folder: Path) -> None:
    name, experiment = "several.yaml" if GROUPS[group] else group, Path(group.split("+")[0]).stem
    callbacks = [{**each, "init_args": arguments(each)} for each in GROUPS[group]]
    together = {"base": "base/digits.yaml", "trainer": {"callbacks+": callbacks}}
    Path("several.yaml").write_text(yaml.safe_dump(together))
    short = ["--trainer.max_epochs", 1, "--trainer.limit_val_batches", 1, "--model.local_epochs", 1]
    if group in MARKS:
        config = config_of([f"--config={name}"])
        short += ["--data.participation", 4, *generated_data(config, folder / name)]
    short += ["--trainer.callbacks.points", 3] if group == "rules/curvature.yaml" else []  # of LossSurface
    short += ["--model.local_epochs", 3] if group == "rules/fedrep.yaml" else []  # of which two train the head
    result = run("fit", "--config", name, *short, "--experiment", experiment)
    assert result.status == 0, result.err
    assert not [text for text in result.warnings if "left out" in text]
    (row,) = rows(Path("runs", experiment, "version_0", "metrics.csv"))
    assert row["round"] == 1
    accuracy = next(row[measure] for measure in ("val/top1", "val/token_top1", "val/map50") if measure in row)
    assert 0 <= accuracy <= row.get("val/top3", 1) <= 1  # a language model logs no top-3 accuracy
    assert math.isfinite(row["val/loss"])
    assert math.isfinite(row["train/loss"])
    assert 0 <= row.get("conflict/ratio", 0) <= 1
    check_documented(Path("runs", experiment, "version_0"))
