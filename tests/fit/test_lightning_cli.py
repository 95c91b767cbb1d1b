"""What the command line changes in Lightning's own: public hooks, and hyper-parameters of each module's own."""

from typing import Any

import lightning
import pytest
from lightning.pytorch import LightningDataModule
from lightning.pytorch.cli import LightningArgumentParser
from toy import Quadratic

from fl_lightning.fit.lightning_cli import OpenCLI, own_hyperparameters


def test_open_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hook is called where Lightning calls its private method; a subcommand of one's own gets its arguments."""

    class Command(lightning.Trainer):
        def show(self, model: Any, colour: str) -> None:
            """Show it."""

    class CLI(OpenCLI):
        own_subcommands = frozenset({"show"})
        calls: list[str]

        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {"show": {"model"}}

        def add_own_arguments(self, subcommand: str, parser: LightningArgumentParser) -> list[str]:
            self.calls = [f"arguments of {subcommand}"]
            parser.add_argument("--colour", default="red")
            return ["colour"]

        def find_checkpoint(self) -> None:
            self.calls.append("checkpoint")

        def set_seed(self) -> None:
            self.calls.append("seed")

        def instantiate_classes(self) -> None:
            self.calls.append("classes")

        def run_subcommand(self, subcommand: str) -> None:
            self.calls.append(f"run {subcommand}")

    monkeypatch.setattr("sys.argv", ["program"])
    cli = CLI(Quadratic, trainer_class=Command, args=["show", "--colour", "blue"], save_config_callback=None)
    assert cli.calls == ["arguments of show", "checkpoint", "seed", "classes", "run show"]
    assert cli.setting(cli.config, "colour") == "blue"
    assert "--colour" in cli.parser_of("show").format_help()


class Made(LightningDataModule):
    def __init__(self, size: int = 1, width: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()


class Base(LightningDataModule):
    def __init__(self, size: int, depth: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()


class Making(Base):
    def __init__(self, size: int) -> None:
        self.made = Made(width=3)
        super().__init__(size)


def test_own_hyperparameters() -> None:
    """The outer module's size, 5, is none of the inner one's; its base class's depth is its own."""
    with own_hyperparameters():
        outer = Making(5)
    assert dict(outer.made.hparams) == {"size": 1, "width": 3}
    assert dict(outer.hparams) == {"size": 5, "depth": 4}
    assert Making(5).made.hparams["size"] == 5, "Lightning's own: else the function above has no use"
