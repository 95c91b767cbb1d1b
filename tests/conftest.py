"""What holds for all tests."""

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache

import pytest
from lib.command import forget
from lightning.fabric.utilities import registry

import fl_lightning.engine.devices.forks
import fl_lightning.fit.command


@pytest.fixture(autouse=True, scope="session")
def _plugins_looked_up_once() -> Iterator[None]:
    """A Trainer looks for plugins in all installed packages, which takes longer than a round of a toy problem."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", cache(registry.entry_points))
        yield


@pytest.fixture(autouse=True, scope="session")
def _imports_are_no_garbage() -> Iterator[None]:
    """Of all that was imported before the tests, no collection looks again for garbage: each took half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _commands_in_this_process_start_no_copies_of_it() -> Iterator[None]:
    """The copies would run the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (fl_lightning.fit.command, fl_lightning.engine.devices.forks):
            patch.setattr(module, "can_fork", lambda: False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_waits_for_the_disk() -> Iterator[None]:
    """Files are complete for all processes, also after a kill, without that; only a power cut needs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, nor any process it starts, reads or writes the user's cache or data folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("FL_LIGHTNING_DATA", raising=False)
        yield


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test finds a module, such as ``mine``, that another one wrote and imported."""
    before = set(sys.modules)
    yield
    forget(before, tmp_path_factory.getbasetemp())
