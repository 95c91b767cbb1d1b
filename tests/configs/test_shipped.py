"""Every YAML that ships: it parses, says what it is, and runs a round on generated data of the right shape."""

import math
import re
import shlex
from pathlib import Path

import pytest
from command import rows, run
from generated import generated_data
from reported import check_documented, check_reported

from fl_lightning.fit.configs import CONFIGS, bases, shipped_configs
from fl_lightning.fit.reading import config_of

SHIPPED = [name for name in shipped_configs() if not name.startswith("papers/")]  # those: test_papers.py


@pytest.fixture(params=SHIPPED)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A shipped config's bare name; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    return str(request.param)


def header(path: Path) -> str:
    """The comment that a config begins with."""
    found = re.match(r"(#[^\n]*\n)+", path.read_text())
    assert found is not None, path
    return found[0]


def test_there_is_a_config_for_every_method_and_data_set() -> None:
    names = {"mnist_gh.yaml", "digits_gh.yaml", "cifar10_gh.yaml", "cifar100_gh.yaml", "cifar10_fedlaw.yaml"}
    assert names | {"cifar10_fedmgc.yaml"} <= set(SHIPPED)


def test_begins_with_what_it_is_and_how_to_launch_it(name: str) -> None:
    """A comment: the table it comes from (or that there is none), its launch line, and one more with an override."""
    text, *below = (header(path) for path in [CONFIGS / name, *map(Path, bases(CONFIGS / name))])
    assert re.search(r"\b(Table|Tables|Fig\.|No paper reports this experiment)", text.replace("\n# ", " "))
    launches = re.findall(rf"^#   fl-lightning fit --config {re.escape(name)}(.*)$", text, flags=re.MULTILINE)
    assert len(launches) >= 2
    assert any(re.search(r"--(data|trainer|model)\.(?!root|download)", launch) for launch in launches[1:])
    assert "val/*" in text + "".join(below), "the papers hold nothing out: the config must say what val/* is"


def test_launch_lines_in_the_header_parse(name: str) -> None:
    """They are there to be copied."""
    launches = re.findall(r"^#   fl-lightning (fit .*)$", (CONFIGS / name).read_text(), flags=re.MULTILINE)
    rounds = set()
    for launch in launches:
        command, *arguments = shlex.split(launch, comments=True)
        assert command == "fit"
        parsed = config_of(arguments)
        rounds.add(parsed["trainer"]["max_epochs"])
        assert parsed["data"]["class_path"].startswith("fl_lightning.datamodules.")
    assert len(rounds) == 1


def test_runs_a_round_and_is_reported(name: str, tmp_path: Path) -> None:
    config = config_of([f"--config={name}"])
    local = "local_epochs" if config["model"]["local_steps"] is None else "local_steps"
    few = ["--data.participation", 4] if name.startswith("cifar") else []
    short = [*few, "--trainer.max_epochs", 1, "--trainer.limit_val_batches", 1, f"--model.{local}", 1]
    result = run("fit", "--config", name, *generated_data(config, tmp_path / "images"), *short)
    assert result.status == 0, result.err
    assert not [text for text in result.warnings if "left out" in text]
    (row,) = rows(Path("runs", Path(name).stem, "version_0", "metrics.csv"))
    assert row["round"] == 1
    assert 0 <= row["val/top1"] <= row["val/top3"] <= 1
    assert math.isfinite(row["val/loss"])
    assert math.isfinite(row["train/loss"])
    if "ConflictMonitor" in str(config["trainer"]["callbacks"]):
        assert 0 <= row["conflict/ratio"] <= 1
    check_reported(Path("runs", Path(name).stem, "version_0"))
    check_documented(Path("runs", Path(name).stem, "version_0"))
