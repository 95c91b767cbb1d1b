"""What a client hook uses could travel to a client: what is in its run, and not the server's data module or Trainer."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import lists
import pytest

from fl_lightning import FederatedCallback, LocalRun, Server
from fl_lightning.engine.rules.callback import CLIENT_HOOKS

SHIPPED = [cls for folder in lists.FOLDERS for cls in lists.callbacks(folder)]


def called(cls: type, function: Callable[..., Any], tree: ast.AST) -> Iterator[Callable[..., Any]]:
    """The functions of callbacks that a function of a class may call: by name, or on itself or on a parent."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            found = (
                [vars(each).get(node.attr) for each in cls.__mro__] if ast.unparse(owner) in ("self", "super") else []
            )
        else:
            found = [function.__globals__.get(node.id)] if isinstance(node, ast.Name) else []
        own = (cls.__module__, "fl_lightning.callbacks")
        yield from (each for each in found if inspect.isfunction(each) and each.__module__.startswith(own))


def used(cls: type) -> set[str]:
    """The places where a client hook of a class, or what it calls, uses the server's data module or Trainer."""
    waiting = [vars(each).get(hook) for each in cls.__mro__ for hook in CLIENT_HOOKS if each is not FederatedCallback]
    seen, places = set[Any]([None]), set[str]()
    while waiting:
        if (function := waiting.pop()) in seen or function is None:
            continue
        seen.add(function)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        texts = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for text in texts & {"orchestrator.data", "orchestrator.trainer", "self.orchestrator"}:
            places.add(f"{function.__qualname__}: {text}")
        waiting += called(cls, function, tree)
    return places


@pytest.mark.parametrize("cls", SHIPPED, ids=lambda cls: cls.__name__)
def test_client_hooks_use_what_could_travel(cls: type) -> None:
    assert not used(cls)


def first(orchestrator: Server) -> int:
    return int(orchestrator.data.sizes[0])


class Base(FederatedCallback):
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        first(orchestrator)


class Greedy(Base):
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        super().on_client_start(orchestrator, run)

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.look(orchestrator)

    def look(self, orchestrator: Server) -> int:
        return orchestrator.trainer.world_size

    def aggregate(self, orchestrator: Server, cohort: Any) -> Any:
        orchestrator.data  # noqa: B018  # a server hook may
        return cohort


def test_what_helpers_use_counts() -> None:
    assert used(Greedy) == {"first: orchestrator.data", "Greedy.look: orchestrator.trainer"}
