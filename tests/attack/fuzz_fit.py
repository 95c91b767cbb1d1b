"""Lines of ``fit`` for ``fuzz.py``: drawn from what the command accepts.

Each option of the parser, each argument of each shipped rule, monitor, partition, sampler, data module and network and
of torch's optimizers and schedulers, with values inside and outside their range and of wrong types; and configs with a
value replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

import yaml
from attack.fuzz_line import Line
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from lib.command import TINY
from torch import nn, optim

import fl_lightning.callbacks
import fl_lightning.models
from fl_lightning import ClientSampler, FederatedDataModule
from fl_lightning.datamodules import Corruption, Digits, LabelledData, Partition
from fl_lightning.fit.read_config import parser_of

FIT = ("--config", "tiny.yaml", "--trainer.max_epochs=1", "--trainer.max_time=00:00:00:20")
FIT += ("--trainer.enable_progress_bar=false",)
ODD: list[Any] = [
    *(None, True, "", "x", "null", ".", "/", "é\u202e🙂", "a" * 3000, "-", "--x", "{", "1e", "0x1", "08:00"),
    *(-1, 0, 1, 2, 0.5, -0.5, 1.5, 1e-320, 1e-30, 1e30, 1e308, 10**30, -(10**30)),
    *(float("inf"), float("-inf"), float("nan")),
    *([], [1], [None], [[[]]], [1, 2, 3], {}, {"a": {"b": [1]}}, {"class_path": "x"}, {"class_path": 5}),
    *({"class_path": "FedAvg", "init_args": {"q": 1}}, {"class_path": "TwoNN", "init_args": None}),
]
DAMAGES = ["", "\t", "[", "}", ": ", "&a ", "*a", "\x01", "- ", "\n", "!!python/name:os"]
# Numbers above 2 ask these for more work, processes or memory than a test has, and rightly get it.
LABORIOUS = {
    "devices",
    "num_nodes",
    "num_threads",
    "num_workers",
    "max_epochs",
    "min_epochs",
    "max_steps",
    "min_steps",
    "fast_dev_run",
    "epochs",
    "iterations",
    "count",
    "points",
    "examples",
    "num_samples",
    "local_epochs",
    "local_steps",
    "steps",
    "hidden",
    "width",
    "depth",
    "num_classes",
    "channels",
    "out",
    "accumulate_grad_batches",
    "clients_per_batch",
    "num_sanity_val_steps",
}
SKIPPED = {
    "help",
    "config",
    "print_config",
    "base",
    "grid",
    "ckpt_path",
    "trainer",
    "model",
    "data",
    "model_registry",
    "max_time",
}


NEEDED: dict[str, Any] = {
    **{
        "mu": 0.1,
        "lr": 0.1,
        "num_byzantine": 0,
        "alpha": 0.5,
        "ratio": 0.1,
        "threshold": 1.0,
        "gamma": 0.9,
        "share": 0.5,
    },
    **{"classes": 2, "step_size": 1, "milestones": [1], "T_max": 2, "T_0": 1, "max_lr": 0.1, "total_iters": 2},
    **{"base_lr": 0.01, "network": {"class_path": "TwoNN", "init_args": {"in_features": 64}}, "name": "resnet18"},
}


@dataclass(frozen=True, eq=False)
class Slot:
    """A place for a value.

    Attributes:
        option: the command line's option, such as "--data.partition".
        path: the keys below the option, class by class; empty for the option's own value.
        kind: the type of the value, or an empty annotation.
        spec: the class path, for arguments of a class.
        others: the other arguments that the class needs.
    """

    option: str
    path: tuple[str, ...]
    kind: Any
    spec: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the argument."""
        return self.path[-1] if self.path else self.option.rpartition(".")[2].lstrip("-")


def slots() -> list[Slot]:
    """List the options of ``fit`` and the arguments of the classes that its options take."""
    actions = parser_of("fit")._actions
    found = [
        Slot(f"--{action.dest}", (), getattr(action, "_typehint", None))
        for action in actions
        if action.dest not in SKIPPED and not action.dest.endswith(".help")
    ]
    rules = [getattr(fl_lightning.callbacks, name) for name in fl_lightning.callbacks.__all__]
    networks = [
        cls for cls in vars(fl_lightning.models).values() if inspect.isclass(cls) and issubclass(cls, nn.Module)
    ]
    schedulers = [cls for cls in vars(optim.lr_scheduler).values() if _is(cls, optim.lr_scheduler.LRScheduler)]
    optimizers = [cls for cls in vars(optim).values() if _is(cls, optim.Optimizer)]
    for option, classes in {
        "--trainer.callbacks+": rules,
        "--data.partition": Partition.__subclasses__(),
        "--data.sampler": ClientSampler.__subclasses__(),
        "--data.corruption": Corruption.__subclasses__(),
        "--model.client.network": networks,
        "--model.client.optimizer": optimizers,
        "--model.server_optimizer": optimizers,
        "--model.local_lr_scheduler": schedulers,
        "--model.server_scheduler": schedulers,
    }.items():
        for cls in classes:
            needed = _needed(cls)
            found += [Slot(option, (name,), kind, _path(cls), needed) for name, kind in _arguments(cls)]
    own = {name: kind for cls in (Digits, LabelledData, FederatedDataModule) for name, kind in _arguments(cls)}
    return found + [Slot(f"--data.{name}", (), kind) for name, kind in own.items()]


def _is(cls: Any, base: type) -> bool:
    return inspect.isclass(cls) and issubclass(cls, base) and cls is not base and not cls.__name__.startswith("_")


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__name__}" if cls.__module__.startswith("torch") else cls.__name__


def _needed(cls: type) -> dict[str, Any]:
    """Values of the arguments that a class cannot do without, and the size of the digits for a network."""
    signature = inspect.signature(cls).parameters
    sizes = {name: value for name, value in {"in_features": 64, "in_channels": 1}.items() if name in signature}
    return sizes | {
        name: NEEDED[name] for name, each in signature.items() if each.default is each.empty and name in NEEDED
    }


def _arguments(cls: type) -> Iterator[tuple[str, Any]]:
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD and name not in ("params", "optimizer"):
            yield name, parameter.annotation


def values(slot: Slot) -> st.SearchStrategy[Any]:
    """Values for a slot: a third of them odd, the others of the slot's type."""
    if slot.name in ("num_nodes", "devices"):  # a second node would be waited for, a second process would attack anew
        return st.sampled_from([value for value in ODD if not is_large(value) and value != 2])
    odd = [value for value in ODD if slot.name not in LABORIOUS or not is_large(value)]
    kinds = [slot.kind, *get_args(slot.kind)]
    fitting: list[st.SearchStrategy[Any]] = [st.sampled_from([0, 1, 2, -1, 0.1, 0.9, True, False])]
    fitting += [st.sampled_from(get_args(kind)) for kind in kinds if get_origin(kind) is Literal]
    if float in kinds or "float" in str(slot.kind):
        fitting.append(st.floats(-2, 2) if slot.name in LABORIOUS else st.floats())
    if int in kinds or "int" in str(slot.kind):
        fitting.append(st.integers(-3, 2) if slot.name in LABORIOUS else st.integers(-3, 100))
    return st.one_of(st.sampled_from(odd), st.one_of(fitting), st.one_of(fitting))


def is_large(value: Any) -> bool:
    """Whether a value is a number above 2."""
    return isinstance(value, int | float) and value > 2


@st.composite
def command_lines(draw: Any, places: list[Slot]) -> tuple[str, ...]:
    """One to three options with values."""
    arguments = []
    for slot in draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique_by=lambda slot: slot.option)):
        value = draw(values(slot))
        if slot.path:
            value = {"class_path": slot.spec, "init_args": {**slot.others, slot.path[0]: value}}
        arguments.append(f"{slot.option}={value if isinstance(value, str) else as_yaml(value)}")
    return tuple(arguments)


def as_yaml(value: Any) -> str:
    """Write a value in one line of YAML."""
    return (
        str(yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True))
        .split("\n...")[0]
        .strip()
    )


@st.composite
def configs(draw: Any) -> str:
    """The tiny config with one or two values replaced, or a part of its text damaged."""
    content = yaml.safe_load(TINY)
    for _ in range(draw(st.integers(1, 2))):
        nodes = list(_nodes(content))
        parent, key = draw(st.sampled_from(nodes))
        slot = Slot(f"--{key}", (), None)
        parent[key] = deepcopy(draw(values(slot)))  # the next value may replace a part of this one
    text = yaml.safe_dump(content, allow_unicode=True)
    if draw(st.integers(0, 3)):
        return text
    at = draw(st.integers(0, len(text) - 1))
    return text[:at] + draw(st.sampled_from(DAMAGES)) + text[at:]


def _nodes(node: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield node, key
        if isinstance(value, dict | list):
            yield from _nodes(value)


def fit_lines(count: int, start: int) -> list[Line]:
    """Draw distinct lines, the same for the same seed."""
    found: dict[tuple[tuple[str, ...], str], None] = {}

    @seed(start)
    @settings(
        max_examples=max(1, 2 * count),
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(st.tuples(command_lines(slots()), st.just(TINY)), st.tuples(st.just(()), configs())))
    def collect(case: tuple[tuple[str, ...], str]) -> None:
        found[case] = None

    collect()
    return [
        Line(("fit", *FIT, *arguments), {} if config == TINY else {"tiny.yaml": config.encode()})
        for arguments, config in list(found)[:count]
    ]
