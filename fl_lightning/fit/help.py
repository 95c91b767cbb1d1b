"""The help of the commands of one run: their options in short, ours first, and where the rest is told."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch import LightningModule
from typing_extensions import override

import fl_lightning.callbacks
import fl_lightning.datamodules
import fl_lightning.models
from fl_lightning.engine.data import FederatedDataModule

WIDTH, INDENT = 100, 32  # of the page, and of the words beside an option
PLAIN = {  # in place of the parser's words
    "config": "a config file, or the name of a shipped config, such as digits_gh.yaml; may be given again",
    "seed_everything": "the seed of all randomness",
    "ckpt_path": 'a checkpoint to load; "last" is that of the last run of the experiment',
    "weights_only": "whether to load nothing but tensors and numbers from the checkpoint",
}
# The options of Lightning's Trainer that most runs set; the others are named only.
USUAL = {
    "trainer.max_epochs": "number of rounds",
    "trainer.callbacks": "rules and monitors; --trainer.callbacks+=FedNova adds one",
    "trainer.logger": "beside the run folder: TensorBoardLogger, WandbLogger, MLFlowLogger, …",
    "trainer.accelerator": "cpu, gpu, …",
    "trainer.devices": "on which clients train side by side",
    "trainer.precision": "such as bf16-mixed",
    "trainer.check_val_every_n_epoch": "validate after every so many rounds",
    "trainer.default_root_dir": "the folder of all runs (runs)",
}
MORE = {
    "--trainer.help, --model.help": "the options of the Trainer, of the orchestrator, in full",
    "--data.help CLASS": "the options of a data module",
    "--model.client.help CLASS": "the options of a client's module",
    "--trainer.callbacks.help CLASS": "the options of a rule or monitor",
    "--print_config": "the whole config that the other arguments make, defaults included",
}


class GroupHelp(argparse._HelpAction):
    """Shows the options of one group in full: ``--trainer.help``."""

    @override
    def __call__(self, parser: Any, *args: Any) -> None:
        group, formatter = parser.groups[self.dest.removesuffix(".help")], parser._get_formatter()
        formatter.start_section(group.title)
        formatter.add_arguments(group._group_actions)
        formatter.end_section()
        print(formatter.format_help(), end="")
        parser.exit()


def brief(command: str, actions: Iterable[argparse.Action], groups: Mapping[str, Any]) -> str:
    """Write the help of a command.

    Args:
        command: its name.
        actions: all options.
        groups: the groups "trainer", "model" and "data" of the options.
    """
    named = {name: action.help or "" for action in actions for name in _names(action)}
    options = {name: PLAIN.get(name) or _first(words) for name, words in named.items()}
    own = {name: words for name, words in options.items() if name.partition(".")[0] not in groups}
    model = {name: words for name, words in options.items() if name.startswith("model.")}
    others = [name.removeprefix("trainer.") for name in options if name.startswith("trainer.") and name not in USUAL]
    data = {"data": "the data module's class", "data.OPTION": "an option of that class, such as --data.num_clients"}
    lines = [f"usage: fl-lightning {command} --config FILE [--OPTION VALUE …]"]
    lines += _section("The run", own) + _section("The rounds, and the clients' training", model)
    lines += _section("The data", data) + _section("Lightning's Trainer", USUAL)
    lines += _wrapped(f"and --trainer. with {', '.join(others)}")
    lines += ["", "The rest:", *(line for option, words in MORE.items() for line in _line(option, words))]
    lines += ["", "Shipped classes; one of your own is named with its module, as in my_module.MyRule:"]
    for what, names in _shipped().items():
        lines += _wrapped(f"{what}: {', '.join(names)}")
    return "\n".join(lines) + "\n"


def _names(action: argparse.Action) -> list[str]:
    """The long name of an option without dashes, if it is one that a run has: no help, no link between options."""
    found = [name.removeprefix("--") for name in action.option_strings if re.fullmatch(r"--[\w.]+", name)][:1]
    return [name for name in found if not name.endswith("help") and name != "print_config"]


def _section(title: str, options: Mapping[str, str]) -> list[str]:
    return ["", f"{title}:", *(line for name, words in options.items() for line in _line(f"--{name}", words))]


def _line(option: str, words: str) -> list[str]:
    lines = textwrap.wrap(words, WIDTH - INDENT, max_lines=2, placeholder=" …", break_on_hyphens=False) or [""]
    if len(option) + 3 > INDENT:
        lines = ["", *lines]
    return [f"{f'  {option}' if number == 0 else '':{INDENT}}{line}".rstrip() for number, line in enumerate(lines)]


def _first(words: str) -> str:
    """The first sentence that says more than the default.

    >>> _first("Defaults to ``None``. If ``True``, loads tensors only. Otherwise all.")
    'If True, loads tensors only'
    """
    sentences = re.split(r"[.;](?: |$)", " ".join(words.replace("`", "").split()))
    return next((each for each in sentences if not each.startswith("Default")), "")


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _shipped() -> dict[str, list[str]]:
    models = {name: getattr(fl_lightning.models, name) for name in fl_lightning.models.__all__}
    modules = [name for name, cls in models.items() if issubclass(cls, LightningModule)]
    data = [(name, getattr(fl_lightning.datamodules, name)) for name in fl_lightning.datamodules.__all__]
    return {
        "modules": modules,
        "networks": [name for name in models if name not in modules],
        "data": [name for name, each in data if isinstance(each, type) and issubclass(each, FederatedDataModule)],
        "rules and monitors": list(fl_lightning.callbacks.__all__),
    }
