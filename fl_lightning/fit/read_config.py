"""config_of: the config of a run, read without running anything. data_of, callbacks_of: what a config makes.

weights_of: the file that a run begins with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from fl_lightning.datamodules import FederatedDataModule
from fl_lightning.engine.hosting.adapted import is_adapter
from fl_lightning.engine.hosting.initial import TIMM, check_is_file
from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.command import FederatedCLI
from fl_lightning.fit.configs import resolve_configs
from fl_lightning.fit.messages import mistake_in
from fl_lightning.fit.own_data import begin_anew
from fl_lightning.fit.parser import Parser
from fl_lightning.runs.folder.checkpoints import checkpoint_of
from fl_lightning.runs.folder.yaml_text import read_yaml


class _ParsersMadeError(Exception):
    """Leaves the constructor of a command line whose parsers are made."""


class _Parsers(FederatedCLI):
    """Has the parser of a command; parses, makes and runs nothing."""

    def __init__(self, command: str) -> None:
        with suppress(_ParsersMadeError):
            super().__init__([command])

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        raise _ParsersMadeError


@cache
def parser_of(command: str) -> LightningArgumentParser:
    """Make the parser of a command of one run, such as ``fit``."""
    return _Parsers(command)._parser(command)


def config_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse a run's whole config, defaults included, as the run's config.yaml would hold it.

    Args:
        arguments: arguments of ``fl-lightning fit``: configs and options.

    Raises:
        ConfigurationError: ``fit`` would refuse the arguments.
    """
    parser = parser_of("fit")
    with _mistakes_in_one_line():
        dumped = parser.dump(parser.parse_args(begin_anew(resolve_configs(arguments))), skip_unset=False)
        return dict(read_yaml("the config", dumped))


def data_of(config: Mapping[str, Any]) -> FederatedDataModule:
    """Make the data module of a run's config, which loads nothing yet.

    Args:
        config: a config as :func:`config_of` returns it.

    Raises:
        ConfigurationError: an argument of the data module is outside its range.
    """
    parser = Parser()
    parser.add_subclass_arguments(FederatedDataModule, "data")
    data: FederatedDataModule = _make(parser, "data", config["data"])
    return data


def callbacks_of(config: Mapping[str, Any]) -> list[Callback]:
    """Make the callbacks of a run's config.

    Args:
        config: a config as :func:`config_of` returns it.

    Raises:
        ConfigurationError: an argument of a callback is outside its range.
    """
    parser = Parser()
    parser.add_argument("--callbacks", type=list[Callback] | Callback | None)  # as the Trainer's
    made = _make(parser, "callbacks", config["trainer"]["callbacks"])
    if isinstance(made, list):
        return made
    return [made] if made else []


def weights_of(config: Mapping[str, Any]) -> Path | None:
    """Find the file of the initial weights of a run's config, without reading the file; None if the run names none.

    Args:
        config: a config as :func:`config_of` returns it.

    Raises:
        ConfigurationError: there is no such file.
    """
    source = config["model"]["init_from"]
    if source is None or source.startswith(TIMM):
        return None
    path = checkpoint_of(Path(source))
    if not is_adapter(path):
        check_is_file(path)
    return path


def _make(parser: Parser, name: str, settings: Any) -> Any:
    """Make what a parser's only option describes."""
    with _mistakes_in_one_line():  # parsing changes the lists in the settings
        return parser.instantiate(parser.parse_object({name: deepcopy(settings)}))[name]


@contextmanager
def _mistakes_in_one_line() -> Iterator[None]:
    """Turn an error that a user's mistake has caused into a ConfigurationError."""
    try:
        yield
    except Exception as error:
        if (mistake := mistake_in(error)) is None:
            raise
        raise ConfigurationError(mistake) from None
