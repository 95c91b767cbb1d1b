"""The help of the commands of one run."""

import re
from pathlib import Path

import pytest
from lib.command import run

import fl_lightning.callbacks
from fl_lightning.fit.command import FederatedCLI
from fl_lightning.fit.helps.class_lists import KINDS, listing, purpose
from fl_lightning.fit.helps.stored import stored_help
from fl_lightning.fit.read_config import parser_of

TITLES = ["The run:", "The rounds, and the clients' training:", "The data:", "Lightning's Trainer:", "More help:"]


@pytest.mark.parametrize("command", ["fit", "data"])
def test_help_is_a_page_that_begins_with_what_is_federated(command: str) -> None:
    """And names the shipped classes, but no module of the engine's own."""
    result = run(command, "--help")
    assert result.status == 0
    assert result.out.startswith(f"usage: fl-lightning {command} --config FILE ")
    lines = result.out.splitlines()
    assert len(lines) < 120
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line in TITLES] == TITLES
    assert ("--plot" in result.out) == (command == "data")
    named = ("ImageClassifier", "YOLOv8", "HuggingFace", "GradientHarmonization", "ConflictMonitor")
    assert [name for name in (*named, "ClientHost") if f" {name}" in result.out] == [*named]


@pytest.mark.parametrize("command", FederatedCLI.subcommands())
def test_the_page_that_is_printed_without_torch_is_the_parsers(command: str) -> None:
    assert run(command, "--help").out == parser_of(command).format_help() == stored_help(command)


def test_with_another_version_of_lightning_the_parser_writes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_lightning.fit.helps.stored.version", lambda package: "0.1")
    assert stored_help("fit") is None
    assert run("fit", "--help").out == parser_of("fit").format_help()


def test_help_names_every_option() -> None:
    """Those of the Trainer that few runs set are named without their first part."""
    page = run("fit", "--help").out
    trainer = page[page.index("Lightning's Trainer:") : page.index("More help:")]
    names = [name for action in parser_of("fit")._actions for name in action.option_strings]
    names = [name for name in names if re.fullmatch(r"--[\w.]+", name) and not name.endswith("help")]
    assert len(names) > 60
    for name in names:
        short = name.removeprefix("--trainer.")
        assert re.search(rf"{re.escape(name)}\b", page) or re.search(rf"\b{short}\b", trainer), name


OTHERS = {
    **{"data": "VisionData", "model.client.network": "ImageClassifier", "trainer.callbacks": "EarlyStopping"},
    **{"data.partition": "Partition", "data.augment": "Augmentation", "data.sampler": "ClientSampler"},
}


def listed(page: str) -> list[str]:
    """The classes of a page."""
    return re.findall(r"^  ([A-Z]\w+) ", page.partition("Your own:")[0], re.M)


@pytest.mark.parametrize("option", KINDS)
def test_an_option_lists_the_shipped_classes_with_their_purpose(option: str) -> None:
    """Without those that need a subclass, and without those of PyTorch and Lightning; and how to name one's own."""
    result = run("fit", f"--{option}.help")
    assert (result.status, result.err) == (0, "")
    classes = KINDS[option].classes()
    assert sorted(listed(result.out)) == sorted(each.__name__ for each in classes)
    assert OTHERS.get(option) not in listed(result.out)
    for each in classes:
        begins = re.escape(" ".join(purpose(each).split()[:3]))
        assert re.search(rf"^  {each.__name__} +{begins}", result.out, re.M), each
    assert re.search(rf"--{option}(\+=| )my_module\.My", result.out)
    assert result.out.endswith(f"The options of a class: --{option}.help CLASS\n")
    assert max(map(len, result.out.splitlines())) <= 100


def test_all_rules_and_monitors_have_a_heading() -> None:
    page = listing("trainer.callbacks")
    assert set(listed(page)) == {*fl_lightning.callbacks.__all__}
    assert page.index("rules of the server:") < page.index("  Krum ") < page.index("rules of the clients:")
    assert page.index("rules of the clients:") < page.index("  MOON ") < page.index("monitors, which change nothing:")


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (["--data.help", "Table"], ["--data.train TRAIN", "--data.client_names"]),
        (["--data.init_args.partition.help", "Dirichlet"], ["--data.partition.alpha ALPHA"]),
        (["--model.client.help", "ImageClassifier", "--data", "Digits"], ["--model.client.optimizer"]),
        (["--trainer.callbacks.help", "lightning.pytorch.callbacks.EarlyStopping"], ["--trainer.callbacks.monitor"]),
        (["--data.help", "mine.Cities"], ["--data.inhabitants INHABITANTS", "people in each city"]),
    ],
)
def test_the_options_of_a_class(args: list[str], options: list[str]) -> None:
    """Whatever other options there are: of shipped classes, of Lightning's, and of one's own."""
    Path("mine.py").write_text(MINE)
    result = run("fit", *args)
    assert (result.status, result.err) == (0, "")
    assert all(option in result.out for option in options)


MINE = '''
from fl_lightning import FederatedDataModule


class Cities(FederatedDataModule):
    """Cities.

    Args:
        inhabitants: people in each city.
    """

    def __init__(self, inhabitants: int = 3):
        super().__init__()
'''


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--data.help", "Tabel"], "there is no class Tabel; did you mean Table?"),
        (["--data.help", "FedAvg"], "FedAvg is not of the kind of classes that this option takes"),
    ],
)
def test_the_help_of_a_class_that_is_not_there(args: list[str], said: str) -> None:
    result = run("fit", *args)
    assert (result.status, result.err) == (2, f"fl-lightning: error: {said}\n")


@pytest.mark.parametrize(("group", "option"), [("trainer", "--trainer.profiler"), ("model", "--model.on_bad_update")])
def test_a_group_is_told_in_full(group: str, option: str) -> None:
    result = run("fit", f"--{group}.help")
    assert result.status == 0
    assert option in result.out
    assert "type:" in result.out, "with types and defaults"
    assert set(re.findall(r"^  --(\w+)\.", result.out, re.M)) == {group}
