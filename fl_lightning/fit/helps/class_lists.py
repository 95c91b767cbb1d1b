"""The shipped classes that an option takes, each with the sentence that says what the class is for."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from lightning.pytorch import Callback, LightningModule
from torch import nn

import fl_lightning
import fl_lightning.callbacks
import fl_lightning.datamodules
import fl_lightning.models
from fl_lightning.datamodules import (
    Augmentation,
    BoxData,
    ClientFiles,
    ColumnData,
    Corruption,
    DomainShift,
    FederatedDataModule,
    ImageData,
    LabelledData,
    Partition,
    PublishedImages,
    VisionData,
)
from fl_lightning.datamodules.cohorts.availability import Availability
from fl_lightning.engine.federation.cohorts import ClientSampler

WIDTH, INDENT = 100, 32  # of a page, and of the words beside an option or a class
MADE_FOR_SUBCLASSES = (  # classes that lack a method, which their subclasses define
    *(FederatedDataModule, LabelledData, ImageData, BoxData, ClientFiles, ColumnData, PublishedImages, VisionData),
    *(Partition, ClientSampler, Augmentation, Corruption, DomainShift),
)


@dataclass(frozen=True)
class Kind:
    """A kind of classes that an option takes.

    Attributes:
        about: a noun that describes one class, with its article, such as "the data of the clients".
        base: the class that all of the kind are subclasses of.
        example: the name of a user's own class.
        home: the module whose public names include the shipped classes.
        own: a noun that describes the classes of users; empty for subclasses of the base.
        more: the rest of the help's last sentence, on other values that the option takes; empty for none.
        without: a class whose subclasses do not belong to this kind.
        folders: headings for the classes of each folder of the home, by the folder's name; empty for one list.
    """

    about: str
    base: type
    example: str
    home: ModuleType = fl_lightning.datamodules
    own: str = ""
    more: str = ""
    without: type | None = None
    folders: Mapping[str, str] | None = None

    def classes(self) -> list[type]:
        """Return the shipped classes that can be used without subclassing."""
        classes = []
        for name in self.home.__all__:
            cls = getattr(self.home, name)
            of_this_kind = isinstance(cls, type) and issubclass(cls, self.base)
            if of_this_kind and cls not in MADE_FOR_SUBCLASSES and not issubclass(cls, self.without or ()):
                classes.append(cls)
        return classes

    def own_class(self, option: str) -> str:
        """Tell users how to name a class of their own."""
        name = self.base.__name__
        article = "an" if name[0] in "AEIOU" else "a"
        noun = self.own or f"{article} {name}"
        sign = "+=" if self.folders else " "
        return f"{noun}: --{option}{sign}my_module.{self.example}{self.more}"


FOLDERS = {
    "server": "rules of the server",
    "client": "rules of the clients",
    "personal": "rules that give each client a model of its own",
    "compression": "rules that let clients send fewer bytes",
    "privacy": "rules that add noise, and account for it",
    "adapters": "rules for the adapters of large networks",
    "attacks": "attacks and faults",
    "monitors": "monitors, which change nothing",
}
KINDS = {
    "model.client": Kind(
        "the module that every client trains",
        LightningModule,
        "MyModule",
        home=fl_lightning.models,
        own="any LightningModule, unmodified",
    ),
    "model.client.network": Kind(
        "the network of ImageClassifier or Detector",
        nn.Module,
        "MyNetwork",
        home=fl_lightning.models,
        own="any torch.nn.Module",
        more=", or one of torchvision.models",
        without=LightningModule,
    ),
    "data": Kind(
        "the data of the clients",
        FederatedDataModule,
        "MyData",
        more="; or any LightningDataModule, as the datamodule of PartitionedData",
    ),
    "data.partition": Kind("the partition of the training examples over the clients", Partition, "MyPartition"),
    "data.augment": Kind("an augmentation of the clients' training images", Augmentation, "MyAugmentation"),
    "data.corruption": Kind("a corruption of the clients' training labels", Corruption, "MyCorruption"),
    "data.domain_shift": Kind("a change of the clients' images by their domains", DomainShift, "MyShift"),
    "data.sampler": Kind("the sampler that draws each round's clients", ClientSampler, "MySampler", home=fl_lightning),
    "data.availability": Kind(
        "the simulation of clients that cannot be selected, drop out or are late", Availability, "MyWorld", fl_lightning
    ),
    "trainer.callbacks": Kind(
        "a rule or a monitor; --trainer.callbacks+=CLASS adds one",
        Callback,
        "MyRule",
        home=fl_lightning.callbacks,
        own="a FederatedCallback",
        more="; Lightning's callbacks, such as EarlyStopping and LearningRateMonitor, go by their names",
        folders=FOLDERS,
    ),
}


def listing(option: str) -> str:
    """Write the shipped classes that an option takes, and how users name a class of their own.

    Args:
        option: one of ``KINDS``.
    """
    kind = KINDS[option]
    lines = [f"--{option} CLASS: {kind.about}"]
    for folder, title in (kind.folders or {"": ""}).items():
        inside = f"{kind.home.__name__}.{folder}." if folder else ""
        lines.append("")
        if title:
            lines.append(f"{title}:")
        for cls in kind.classes():
            if cls.__module__.startswith(inside):
                lines += beside(cls.__name__, purpose(cls))
    lines += ["", *wrap(f"Your own: {kind.own_class(option)}", indent=0)]
    return "\n".join([*lines, f"The options of a class: --{option}.help CLASS"]) + "\n"


def purpose(cls: type) -> str:
    """Return the first sentence of a class's description, without markup.

    >>> class Draws:
    ...     \"\"\"Draws ``k`` clients, e.g. of :class:`Table`, by size. Needs sizes.\"\"\"
    >>> purpose(Draws)
    'Draws k clients, e.g. of Table, by size'
    """
    return plain(first_sentence(cls))


def plain(text: str) -> str:
    """Take the marks of reStructuredText out of a docstring.

    >>> plain("as for ``long_tail``; see :class:`~fl_lightning.Monitor`")
    'as for long_tail; see fl_lightning.Monitor'
    """
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("`", "")


def first_sentence(cls: type) -> str:
    """Return the first sentence of a class's description as its docstring has it, without the full stop."""
    text = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    return re.split(r"\.(?= [A-Z]|$)", text)[0]


def beside(name: str, words: str) -> list[str]:
    """Write a name, and up to two lines of words beside it."""
    lines = textwrap.wrap(words, WIDTH - INDENT, max_lines=2, placeholder=" …", break_on_hyphens=False) or [""]
    if len(name) + 3 > INDENT:
        lines = ["", *lines]
    first, *later = lines
    written = [f"  {name}".ljust(INDENT) + first, *(" " * INDENT + line for line in later)]
    return [line.rstrip() for line in written]


def wrap(words: str, indent: int = 2) -> list[str]:
    """Wrap words to lines of a page."""
    first = " " * indent
    later = " " * (indent + 2)
    return textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
