"""What docstrings show in the way of a Python session comes out as shown."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import fl_lightning

MODULES = [
    import_module(info.name)
    for info in pkgutil.walk_packages(fl_lightning.__path__[:1], "fl_lightning.")
    if "deprecated" not in info.name
]
EXAMPLES = [test for module in MODULES for test in doctest.DocTestFinder().find(module) if test.examples]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda test: test.name)
def test_docstring(example: doctest.DocTest) -> None:
    results = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
    assert results.attempted
    assert not results.failed
