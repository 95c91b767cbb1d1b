"""The help of the commands of one run: a short text on each option, this package's first, and pointers to more help."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import override

from fl_lightning.fit.helps.class_lists import KINDS, beside, wrap

PLAIN = {  # in place of the parser's texts
    "config": "a config file, or the name of a shipped config, such as digits_gh.yaml; may be given several times",
    "seed_everything": "the seed of all randomness",
    "ckpt_path": 'a checkpoint to load; "last" is the last checkpoint of the experiment\'s last run',
    "weights_only": "whether to load only tensors and numbers from the checkpoint",
}
# The options of Lightning's Trainer that most runs set; the help only names the others.
USUAL = {
    "trainer.max_epochs": "number of rounds",
    "trainer.callbacks": "rules and monitors; --trainer.callbacks+=FedNova adds one",
    "trainer.logger": "a logger beside the run folder: TensorBoardLogger, WandbLogger, MLFlowLogger, …",
    "trainer.accelerator": "kind of device: cpu, gpu, …",
    "trainer.devices": "number of devices, which train different clients at the same time",
    "trainer.precision": "precision of local training, such as bf16-mixed",
    "trainer.check_val_every_n_epoch": "number of rounds from one validation to the next",
    "trainer.default_root_dir": "the folder of all runs (default runs)",
}
MORE = {
    "--trainer.help, --model.help": "all options of the Trainer, all options of the orchestrator",
    "--data.help [CLASS]": "the data modules, or the options of one",
    "--data.partition.help [CLASS]": "the partitions, or the options of one; also data.sampler, data.availability, …",
    "--model.client.help [CLASS]": "the clients' modules, or the options of one; also model.client.network",
    "--trainer.callbacks.help [CLASS]": "the rules and monitors, or the options of one",
    "--config.help": "the shipped configs",
    "--print_config": "the whole config that the other arguments make, defaults included",
}

PAGE = {  # the classes that the page names, by the options that take them
    "modules": "model.client",
    "networks": "model.client.network",
    "data": "data",
    "partitions": "data.partition",
    "rules and monitors": "trainer.callbacks",
}


class GroupHelp(argparse._HelpAction):
    """Shows the options of one group in full: ``--trainer.help``."""

    @override
    def __call__(self, parser: Any, *args: Any) -> None:
        group = parser.groups[self.dest.removesuffix(".help")]
        formatter = parser._get_formatter()
        formatter.start_section(group.title)
        formatter.add_arguments(group._group_actions)
        formatter.end_section()
        print(formatter.format_help(), end="")
        parser.exit()


def brief(command: str, actions: Iterable[argparse.Action], groups: Mapping[str, Any]) -> str:
    """Write the help of a command.

    Args:
        command: name of the command.
        actions: all options of the command.
        groups: the groups "trainer", "model" and "data" of the options.
    """
    options = {}
    for action in actions:
        if name := _long_name(action):
            options[name] = PLAIN.get(name) or _first_sentence(action.help or "")
    own = {name: words for name, words in options.items() if name.partition(".")[0] not in groups}
    model = {name: words for name, words in options.items() if name.startswith("model.")}
    others = [name.removeprefix("trainer.") for name in options if name.startswith("trainer.") and name not in USUAL]
    data = {"data": "the data module's class", "data.OPTION": "an option of that class, such as --data.num_clients"}
    lines = [f"usage: fl-lightning {command} --config FILE [--OPTION VALUE …]"]
    lines += _section("The run", own) + _section("The rounds, and the clients' training", model)
    lines += _section("The data", data) + _section("Lightning's Trainer", USUAL)
    lines += wrap(f"and, each after --trainer., {', '.join(others)}")
    lines += ["", "More help:"]
    for option, words in MORE.items():
        lines += beside(option, words)
    lines += ["", "Shipped classes (name your own class with its module, as in my_module.MyRule):"]
    for what, option in PAGE.items():
        names = [cls.__name__ for cls in KINDS[option].classes()]
        lines += wrap(f"{what}: {', '.join(names)}")
    return "\n".join(lines) + "\n"


def _long_name(action: argparse.Action) -> str | None:
    """Return an option's long name without dashes; None for help, and for links between options."""
    for option in action.option_strings:
        if re.fullmatch(r"--[\w.]+", option):
            name = option.removeprefix("--")
            return None if name.endswith("help") or name == "print_config" else name
    return None


def _section(title: str, options: Mapping[str, str]) -> list[str]:
    lines = ["", f"{title}:"]
    for name, words in options.items():
        lines += beside(f"--{name}", words)
    return lines


def _first_sentence(words: str) -> str:
    """Return the first sentence that says more than the default.

    >>> _first_sentence("Defaults to ``None``. If ``True``, loads tensors only. Otherwise all.")
    'If True, loads tensors only'
    """
    sentences = re.split(r"[.;](?: |$)", " ".join(words.replace("`", "").split()))
    return next((sentence for sentence in sentences if not sentence.startswith("Default")), "")
