"""The help of the commands of one run."""

import re

import pytest
from command import run

from fl_lightning.fit.reading import _reader


@pytest.mark.parametrize("command", ["fit", "data"])
def test_help_is_a_page_that_begins_with_what_is_federated(command: str) -> None:
    result = run(command, "--help")
    assert result.status == 0
    assert result.out.startswith(f"usage: fl-lightning {command} --config FILE ")
    lines = result.out.splitlines()
    assert len(lines) < 120
    assert max(map(len, lines)) <= 100
    titles = ["The run:", "The rounds, and the clients' training:", "The data:", "Lightning's Trainer:", "The rest:"]
    assert [line for line in lines if line in titles] == titles
    assert ("--plot" in result.out) == (command == "data")


def test_help_names_every_option() -> None:
    """Those of the Trainer that few runs set are named without their first part."""
    page = run("fit", "--help").out
    trainer = page[page.index("Lightning's Trainer:") : page.index("The rest:")]
    names = [name for action in _reader().parser_of("fit")._actions for name in action.option_strings]
    names = [name for name in names if re.fullmatch(r"--[\w.]+", name) and not name.endswith("help")]
    assert len(names) > 60
    for name in names:
        short = name.removeprefix("--trainer.")
        assert re.search(rf"{re.escape(name)}\b", page) or re.search(rf"\b{short}\b", trainer), name


def test_help_names_the_shipped_classes() -> None:
    page = run("fit", "--help").out
    for name in ("ImageClassifier", "YOLOv8", "HuggingFace", "GradientHarmonization", "ConflictMonitor"):
        assert f" {name}" in page
    assert "TransferringModule" not in page, "a module of the engine's own"


@pytest.mark.parametrize(("group", "option"), [("trainer", "--trainer.profiler"), ("model", "--model.on_bad_update")])
def test_a_group_is_told_in_full(group: str, option: str) -> None:
    result = run("fit", f"--{group}.help")
    assert result.status == 0
    assert option in result.out
    assert "type:" in result.out, "with types and defaults"
    assert set(re.findall(r"^  --(\w+)\.", result.out, re.M)) == {group}
