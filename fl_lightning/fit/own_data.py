"""Other data in place of those of a config: the network gets their sizes, and a user's own data their own settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from torch import Tensor

import fl_lightning.datamodules
from fl_lightning.datamodules import Digits, FederatedDataModule, PublishedImages, Shapes
from fl_lightning.engine.federation.batches import CPU
from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import layers_of
from fl_lightning.fit.parser import Parser
from fl_lightning.runs.folder.yaml_text import read_yaml
from fl_lightning.seeding import isolated

SHIPPED = (PublishedImages, Digits, Shapes)  # data sets whose settings serve one another


class NoSettings(FederatedDataModule):
    """Stands between two data modules on a command line: the parser keeps no setting for a class that takes none."""

    def __init__(self) -> None:
        super().__init__()


RESET = f"--data={NoSettings.__module__}.{NoSettings.__name__}"


def begin_anew(args: Sequence[str]) -> list[str]:
    """Let ``--data CLASS`` start from the class's own defaults where it replaces other data that a config names.

    Data sets of the package take the config's settings over: MNIST and CIFAR-10 are compared on the same partition.
    All other data have clients and sizes of their own.

    Args:
        args: a command line, with configs given as paths.
    """
    anew: list[str] = []
    for place, argument in enumerate(args):
        name = _other_data(args, place)
        if name and not _is_shipped(name):
            anew.append(RESET)
        anew.append(argument)
    return anew


def replaces_data(args: Sequence[str]) -> bool:
    """Tell whether a command line names other data than its configs do, to whose sizes the network must be fitted."""
    return any(_other_data(args, place) for place in range(len(args)))


def _other_data(args: Sequence[str], place: int) -> str:
    """Return the class that ``--data`` at a place of a command line names; "" if it replaces no other data."""
    option, _, value = args[place].partition("=")
    if option != "--data":
        return ""
    name = _class_in(value or "".join(args[place + 1 : place + 2]))
    replaced, _ = _data_of_configs(args[:place])
    return name if replaced not in ("", name) else ""


def what_stays_behind(args: Sequence[str]) -> str:
    """Say which settings of a config's data do not follow, given a command line of :func:`begin_anew`."""
    replaced, settings = _data_of_configs(args)
    names = ", ".join(settings) or "settings"
    return f"the data start from their own defaults: the config's {names} are for {replaced}"


def _data_of_configs(args: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the class of the data that the configs of a command line name, and their settings."""
    name = ""
    settings: dict[str, Any] = {}
    for argument in args:
        if argument.startswith("--config="):
            path = argument.removeprefix("--config=")
            for named in layers_of(path, "data", "class_path"):
                name = _short(named)
            for given in layers_of(path, "data", "init_args"):
                settings |= given
    return name, settings


def load_data(settings: Namespace) -> FederatedDataModule:
    """Make the data module that a config describes, and load its training set; download what is missing."""
    parser = Parser()
    parser.add_subclass_arguments(FederatedDataModule, "data", required=True)
    data: FederatedDataModule = parser.instantiate(Namespace(data=settings)).data  # type: ignore[no-untyped-call]
    data.prepare_data()
    data.setup("fit")
    return data


def fit_network(client: Any, data: FederatedDataModule, args: Sequence[str]) -> None:
    """Set the sizes of a network to those of the data, in a config; those given on the command line stay.

    Args:
        client: ``model.client`` of the config, which changes.
        data: the data module, set up.
        args: the command line.
    """
    given = {argument.partition("=")[0].replace(".init_args", "") for argument in args}
    sizes = _sizes(data)
    module = client.get("init_args") or {}
    network = module.get("network") or {}
    for path, options in (("client", module), ("client.network", network.get("init_args") or {})):
        for name, size in sizes.items():
            if name in options and f"--model.{path}.{name}" not in given:
                options[name] = size


def _sizes(data: FederatedDataModule) -> dict[str, int]:
    """Return the sizes of the data, by the names that networks give them."""
    sizes: dict[str, int] = {}
    if (classes := getattr(data, "num_classes", None)) is not None:
        sizes["num_classes"] = int(classes)
    with isolated(CPU):
        example: Any = data.client_dataset(int(data.sizes.argmax()))[0]
    inputs = example[0] if isinstance(example, tuple | list) else None
    if not isinstance(inputs, Tensor):
        return sizes
    sizes["in_features"] = inputs.numel()
    if inputs.ndim == 3:
        sizes["in_channels"] = inputs.shape[0]
        if inputs.shape[1] == inputs.shape[2]:
            sizes["image_size"] = inputs.shape[1]
    return sizes


def _class_in(value: str) -> str:
    """Return the short name of the class in a value of ``--data``: a class, or a mapping with one; "" for a file."""
    try:
        read = read_yaml("--data", value)
        is_file = isinstance(read, str) and Path(read).is_file()
    except (ConfigurationError, OSError, ValueError):  # the parser says what is wrong with the value
        return ""
    if is_file:
        return ""
    path = str(read.get("class_path", "")) if isinstance(read, dict) else str(read)
    return _short(path)


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _is_shipped(name: str) -> bool:
    cls = getattr(fl_lightning.datamodules, name, None)
    return isinstance(cls, type) and issubclass(cls, SHIPPED)
