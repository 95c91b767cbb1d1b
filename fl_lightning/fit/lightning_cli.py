"""OpenCLI: Lightning's command line, with its private methods as public hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from traceback import walk_stack
from types import FrameType
from typing import Any, ClassVar

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import parsing
from typing_extensions import override


class OpenCLI(LightningCLI):
    """A LightningCLI that offers its private methods as public hooks."""

    #: Subcommands beside the Trainer's own; they do not take the arguments of a Trainer method.
    own_subcommands: ClassVar[frozenset[str]] = frozenset()

    def add_own_arguments(self, subcommand: str, parser: LightningArgumentParser) -> list[str]:
        """Add the arguments that a subcommand takes beside those of a run and of the Trainer's method.

        Returns:
            The names of those that the method of one of ``own_subcommands`` takes.
        """
        return []

    def find_checkpoint(self) -> None:
        """Set ``ckpt_path`` in ``self.config`` after the command line is parsed; does nothing until overridden."""

    def set_seed(self) -> None:
        """Seed the global random number generators."""
        super()._set_seed()

    def run_subcommand(self, subcommand: str) -> None:
        """Run a subcommand."""
        super()._run_subcommand(subcommand)

    def parser_of(self, subcommand: str) -> LightningArgumentParser:
        """Return the parser of a subcommand's arguments."""
        return self._parser(subcommand)

    def setting(self, config: Any, name: str) -> Any:
        """Return a setting of the current subcommand; ``config`` is ``self.config`` or ``self.config_init``."""
        return self._get(config, name)

    @override
    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        if subcommand not in self.own_subcommands:
            parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
            self.add_own_arguments(subcommand, parser)
            return parser
        parser = self.init_parser(**kwargs)
        self._add_arguments(parser)
        self._subcommand_method_arguments[subcommand] = self.add_own_arguments(subcommand, parser)
        return parser

    @override
    def _add_instantiators(self) -> None:
        """Do nothing: Lightning would give the data module's arguments to the modules that its constructor makes."""

    @override
    def _parse_ckpt_path(self) -> None:
        self.find_checkpoint()

    @override
    def _set_seed(self) -> None:
        self.set_seed()

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        self.run_subcommand(subcommand)


@contextmanager
def own_hyperparameters() -> Iterator[None]:
    """Let ``save_hyperparameters`` save the arguments of a module's own constructors.

    Lightning adds, and lets win, those of a module in whose constructor the module is made.
    """
    collect = parsing.collect_init_args

    def collect_own(frame: FrameType, path_args: Any, inside: bool = False, classes: Any = ()) -> list[dict[str, Any]]:
        constructors = (parsing._get_init_args(each) for each, _ in walk_stack(frame))
        first = next((each for each in constructors if isinstance(each[0], classes)), None)
        return (
            [first[1], *(args for _, args in takewhile(lambda each: each[0] is first[0], constructors))]
            if first
            else []
        )

    parsing.collect_init_args = collect_own
    try:
        yield
    finally:
        parsing.collect_init_args = collect
