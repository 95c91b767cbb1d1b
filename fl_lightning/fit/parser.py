"""Parser: the parser of the command line and of configs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, NoReturn

import yaml
from jsonargparse import Namespace, get_loader, set_loader
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities import parsing
from typing_extensions import override

from fl_lightning.fit.configs import KEYS
from fl_lightning.fit.helps.class_lists import KINDS, listing, plain
from fl_lightning.fit.helps.page import brief
from fl_lightning.fit.messages import ParsingError
from fl_lightning.runs.config.earlier import bring_up_to_date, check_gone
from fl_lightning.runs.folder.files import is_config_of_run
from fl_lightning.runs.folder.yaml_text import check_text

LOAD = get_loader("yaml")


class Parser(LightningArgumentParser):
    """Parses the command line, without abbreviations of options, and reports a mistake in one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allow_abbrev = False
        set_loader("yaml", _load, (yaml.YAMLError,))

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise an error; the parser would print its usage and exit."""
        owner = "" if self._is_of_a_command() else next(iter(self.groups or ()), "")
        raise ParsingError(message, options_of(self), owner) from ex

    def _is_of_a_command(self) -> bool:
        return {"trainer", "model", "data"} <= set(self.groups or ())

    @override
    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Namespace:
        """Parse a config; a run folder's, which an earlier version may have written, in today's arguments."""
        file = Path(path)
        written = _load(file.read_text(encoding="utf-8")) if is_config_of_run(file) else None
        config = deepcopy(written)
        if isinstance(config, dict):
            check_gone(file, bring_up_to_date(config))
        if config == written:
            parsed: Namespace = super().parse_path(path, *args, **kwargs)
        else:
            parsed = self.parse_string(yaml.safe_dump(config), file.name, *args, **kwargs)
        return parsed

    @override
    def format_help(self, *args: Any, **kwargs: Any) -> str:
        """Write a page of help for a command; the parser would write hundreds of lines, Lightning's first."""
        if self._is_of_a_command():
            return brief(self.prog.split()[-1], self._actions, self.groups or {})
        return plain(str(super().format_help(*args, **kwargs)))

    @override
    def validate(self, namespace: Namespace, skip_unset: bool = False, *args: Any, **kwargs: Any) -> None:
        """Refuse null where the type does not allow null; the parser would treat null as an argument not given.

        Refuse an option that the class does not have where a list may stand, too: the parser would make a list of it.
        """
        for key, value in namespace.items():
            if isinstance(value, list) and value and type(value[-1]).__name__ == "NestedArg":  # the parser's own
                option, given = value[-1]
                raise ValueError(f'Parser key "{key}": Expected a class with the option {option}. Got value: {given}')
        try:
            super().validate(namespace, False, *args, **kwargs)
        except TypeError:
            super().validate(namespace, True, *args, **kwargs)  # says more about an argument that is not given
            raise

    @override
    def instantiate(self, *args: Any, **kwargs: Any) -> Any:
        with own_hyperparameters():
            return super().instantiate(*args, **kwargs)

    @override
    def dump(self, cfg: Any, **kwargs: Any) -> str:
        """Write a config without ``base`` and ``grid``, which the merged config of one run does not need.

        ``resume_changed`` is left out, too: a config that kept it would let every later change pass.
        """
        cfg = cfg.clone()
        if "trainer" in cfg:  # not the arguments of a class, which may have these names, too
            for key in (*KEYS, "resume_changed"):
                cfg.pop(key, None)
        return str(super().dump(cfg, **{"skip_validation": True} | kwargs))  # the parser has validated the values


@contextmanager
def own_hyperparameters() -> Iterator[None]:
    """Let ``save_hyperparameters`` save the arguments of a module's own constructors.

    Lightning adds, and lets win, those of a module in whose constructor the module is made.
    """
    collect = parsing.collect_init_args

    def collect_own(frame: FrameType, path_args: Any, inside: bool = False, classes: Any = ()) -> list[dict[str, Any]]:
        # Constructors of one object call each other, so that their frames follow each other on the stack.
        arguments: list[dict[str, Any]] = []
        owner = None
        for caller, _ in walk_stack(frame):
            made, args = parsing._get_init_args(caller)
            if arguments and made is not owner:
                break
            if isinstance(made, classes):
                owner = made
                arguments.append(args)
        return arguments

    parsing.collect_init_args = collect_own
    try:
        yield
    finally:
        parsing.collect_init_args = collect


def class_help(args: Sequence[str]) -> bool:
    """Show the help of an option that takes a class, if a command line asks for such help, as ``--data.help CLASS``.

    The parser of the command shows less: without a class, the options of the base class alone, or all of PyTorch's
    modules; and nothing of an option of a class that the command line does not name.

    Returns:
        Whether the command line asked for such help.
    """
    for number, arg in enumerate(args):
        name, _, value = arg.replace(".init_args.", ".").removeprefix("--").partition("=")
        option = name.removesuffix(".help")
        if arg.startswith("--") and option != name and option in KINDS:
            following = "".join(args[number + 1 : number + 2])
            _show_help(option, value or ("" if following.startswith("-") else following))
            return True
    return False


def _show_help(option: str, name: str) -> None:
    """Show the help of a class that an option takes; without a name, the list of such classes."""
    if not name:
        print(listing(option), end="")
        return
    parser = Parser()
    parser.add_subclass_arguments(KINDS[option].base, option)
    parser.parse_args([f"--{option}.help", name])


def _load(text: str) -> Any:
    """Read a value, or a file that a value names.

    The parser's messages would write out aliases one by one, and YAML would keep the last of two equal keys.
    """
    if "*" in text or ":" in text:
        check_text("a value in YAML", text)
    return LOAD(text)


def options_of(parser: Any) -> list[str]:
    """Name the options of a parser and its subcommands, without leading ``--``."""
    own = []
    of_subcommands = []
    for action in parser._actions:
        own += [name.removeprefix("--") for name in action.option_strings]
        if isinstance(action.choices, dict):
            for subparser in action.choices.values():
                of_subcommands += options_of(subparser)
    return own + of_subcommands
