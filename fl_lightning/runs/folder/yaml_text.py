"""Read YAML. Imports neither torch nor pandas."""

from __future__ import annotations

import itertools
import math
from typing import Any

import yaml

from fl_lightning.errors import ConfigurationError

MOST_VALUES = 100_000  # values in a text
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, which is ten times as fast, if PyYAML has it


def read_yaml(name: object, text: str) -> Any:
    """Read YAML into numbers, texts, lists and dicts.

    Args:
        name: the file or other source of the text, for messages.
        text: the YAML.

    Raises:
        ConfigurationError: the text is not YAML, its aliases stand for too many values, or a key stands twice.
    """
    try:
        loader = LOADER(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _check(name, root)
        return loader.construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name} is not YAML: {' '.join(_place_and_problem(error).split())}") from None


def check_text(name: object, text: str) -> None:
    """Refuse a text whose aliases stand for too many values, or in which a key stands twice, of which YAML drops one.

    Args:
        name: the file or other source of the text, for messages.
        text: the YAML.

    Raises:
        ConfigurationError: the values are too many, or a key stands twice.
        yaml.YAMLError: the text is not YAML.
    """
    if (root := yaml.compose(text, Loader=LOADER)) is not None:
        _check(name, root)


def _check(name: object, root: yaml.Node) -> None:
    if _size(root, {}) > MOST_VALUES:
        raise ConfigurationError(f"{name}: its aliases (*name) stand for more than {MOST_VALUES:,} values: use fewer")
    _check_keys(name, root)


def _check_keys(name: object, node: yaml.Node) -> None:
    lines: dict[tuple[str, str], int] = {}
    for part in node.value if isinstance(node, yaml.SequenceNode | yaml.MappingNode) else ():
        key, value = part if isinstance(node, yaml.MappingNode) else (None, part)
        if isinstance(key, yaml.ScalarNode):
            line, name_of_key = key.start_mark.line + 1, (key.tag, key.value)
            if name_of_key in lines:
                where = f"on lines {lines[name_of_key]} and {line}"
                raise ConfigurationError(f"{name}: {key.value} stands twice, {where}: make one of the two")
            lines[name_of_key] = line
        _check_keys(name, value)


def _place_and_problem(error: Exception) -> str:
    """Say what is wrong in a text, and on which line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', None) or error}"


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """Count the values of a YAML node, each alias as the values it stands for; infinite if an alias holds itself.

    Args:
        node: the node.
        known: the numbers of nodes that have been counted, by their ids.
    """
    if id(node) not in known:
        known[id(node)] = math.inf  # until it is counted
        parts = node.value if isinstance(node, yaml.SequenceNode | yaml.MappingNode) else ()
        inner = itertools.chain.from_iterable(parts) if isinstance(node, yaml.MappingNode) else parts
        known[id(node)] = 1 + sum(_size(part, known) for part in inner)
    return known[id(node)]
