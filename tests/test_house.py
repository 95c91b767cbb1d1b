"""How the house is built: rooms stand on floors, imports run downward, and a shipped callback is three files.

And what it says at the door: versions that agree, links that lead somewhere, a workflow that runs the tests.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import grimp
import lists
import measures
import pytest
import sentences
import yaml
from packaging.version import Version

import fl_lightning
from fl_lightning import FederatedOrchestrator
from fl_lightning.cli import COMMANDS

REPOSITORY = Path(__file__).parents[1]
PAGES = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
SHIPPED = [(folder, cls) for folder in lists.FOLDERS for cls in lists.callbacks(folder)]


def test_imports_keep_the_order_of_pyproject() -> None:
    """Every room has its floor there: a new one must be given its own."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"an import runs up; move what both rooms need to the lower one\n{done.stdout}"
    assert "Contracts: 3 kept, 0 broken." in done.stdout


def test_no_circles() -> None:
    """The contracts of pyproject.toml count no import of a package's own file; here, all imports count."""
    circles = measures.circles(measures.package_graph())
    assert circles == [], "modules that import one another are one module, or both need a third one below them"


def test_a_circle_through_the_package_is_one_though_for_type_checkers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room low needs a name of the package, which has that name from the room high, which needs low."""
    monkeypatch.syspath_prepend(tmp_path)
    for room in ("low", "high"):
        (tmp_path / "cottage" / room).mkdir(parents=True)
    (tmp_path / "cottage/__init__.py").write_text("from cottage.high import name\n")
    (tmp_path / "cottage/high/__init__.py").write_text("import cottage.low.one\n")
    (tmp_path / "cottage/low/__init__.py").touch()
    needs = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cottage import name\n"
    for module, text in {"one": "", "other": needs}.items():
        (tmp_path / f"cottage/low/{module}.py").write_text(text)
    (rooms,) = measures.circles(grimp.build_graph("cottage", cache_dir=None))
    assert set(rooms) == {"cottage", "cottage.high", "cottage.low"}, "no circle of modules: one imports nothing"
    (tmp_path / "cottage/low/one.py").write_text(needs)
    assert len(measures.circles(grimp.build_graph("cottage", cache_dir=None))) == 2


def test_the_orchestrators_classes_share_little() -> None:
    """A class that three classes of the chain touch would be hard to follow."""
    written, touched = measures.attributes()
    assert len(written) <= 32
    assert len([name for name, classes in touched.items() if len(classes) > 2]) <= 2
    own = [cls for cls in FederatedOrchestrator.__mro__ if cls.__module__.startswith("fl_lightning.")]
    assert [cls.__name__ for cls in own] == ["FederatedOrchestrator", "ClientHost", "Server"]


def test_folders_are_taken_in_at_sight() -> None:
    """A folder has few modules, unless they are a list of like things, and its package says what they are."""
    counts = measures.files()
    for folder, count in counts.items():
        if not folder.startswith("callbacks/"):  # lists of like things
            limit = 8 if folder.startswith("engine") else 11
            assert count <= limit, (
                f"{folder} has {count} modules: give those that belong together a folder of their own"
            )
        text = (measures.PACKAGE / folder / "__init__.py").read_text()
        assert ast.get_docstring(ast.parse(text)), f"{folder} says nothing"


def test_lines_of_code_are_those_with_a_token() -> None:
    """A docstring, a comment and an empty line are none; a call on two lines is two."""
    source = (
        '"""Says this."""\n\n# Why.\ndef add(a: int) -> int:\n    """Add\n    one."""\n    return (a +\n        1)\n'
    )
    assert measures.code_lines(source) == 3


def test_what_makes_a_sentence_hard_is_counted() -> None:
    """Of four statements one holds a fold in a fold; of two loops one is over each."""
    source = (
        "def told(rows):  # why\n"
        "    first, last = rows[0], rows[-1]  # noqa: RUF005\n"
        "    for row in rows:\n"
        "        return [each if each else 0 for each in row]\n"
    )
    counts = {"lines": 4, "statements": 4, "comprehensions": 1, "ternaries": 1, "pairs": 1, "nested": 1}
    counts |= {"functions": 1, "participles": 1, "loops": 2, "each": 1, "comments": 1}
    assert sentences.count(source) == counts


def test_lists_of_callbacks_are_those_that_make_lists_writes() -> None:
    stale = [path.relative_to(REPOSITORY) for path, text in lists.written().items() if path.read_text() != text]
    assert not stale, "run make lists"


@pytest.mark.parametrize(("folder", "cls"), SHIPPED, ids=lambda value: getattr(value, "__name__", value))
def test_a_callback_has_a_file_a_test_and_a_config(folder: str, cls: type) -> None:
    module = cls.__module__.rpartition(".")[2]
    assert (REPOSITORY / "callbacks" / folder / f"{module}.py").is_file()
    assert (REPOSITORY / "tests" / "callbacks" / folder / f"test_{module}.py").is_file()
    assert lists.configs_of(cls), f"no config in configs/rules lists {cls.__name__}"


# What shipped callbacks import of the package beside public names, and why users' rules do without.
NO_USERS_BUSINESS = {
    # each rule decides for itself how small a number is a rounding error; these agree with the engine
    "fl_lightning.engine.updates.gram": {"EPSILON"},
    # private rules ask what other classes promise, and take a training step apart, so that ε is true
    "fl_lightning.engine.rules.callback": {"streams"},
    "fl_lightning.engine.rules.declared": {"declares", "stands"},
    "fl_lightning.engine.rules.server": {"takes_index"},
    # ExampleDP asks what has a batch in its hands, and private rules who the clients are
    "fl_lightning.datamodules.tables.columns": {"LazyImages", "Tuples"},
    "fl_lightning.engine.training.local_training": {"HOOKS"},
    "fl_lightning.engine.federation.batches": {"CPU", "in_memory", "take"},
    # an argument that came after a release
    "fl_lightning.later": {"later"},
    # a monitor that stamps images as a corruption of the data does
    "fl_lightning.datamodules": {"Backdoor", "HuggingFace"},
    # second derivatives of a module's loss need its tensors in the order in which they lie in memory; layers have names
    "fl_lightning.engine.module.params": {"join", "layers", "memory_order"},
    "fl_lightning.seeding": {
        *("derive", "generator", "isolated", "seed_globals"),
        *("global_states", "set_global_states"),  # ExampleDP tries a way that may draw, and goes back
    },
    # messages and errors in the package's own words
    "fl_lightning.engine.federation.clients": {"remedy", "TRANSFER_HOOKS", "ClientData", "content_of", "names_of"},
    "fl_lightning.errors": {"nearest", "values_of"},
    # files and pictures of the run folder
    "fl_lightning.files": {"whole"},
    "fl_lightning.runs.critical_round": {"critical_round"},
    "fl_lightning.runs.pictures": {"BOX", "draw_boxes", "draw_cosines", "draw_surfaces"},
    "fl_lightning.models": {"CausalLM", "Detector"},  # public, and what monitors are for
    "fl_lightning.datamodules.files.pretrained": {"read_pretrained"},
    # what peft and transformers have put into a network
    "fl_lightning.engine.hosting.adapted": {"adapted_layers", "known_class"},
    "fl_lightning.models.adapters": {"transposed_linear"},
    # layers of the shipped networks
    "fl_lightning.models.layers": {"find_classifier", "find_layer"},
}


def test_a_users_rule_can_be_written_like_a_shipped_one() -> None:
    """Of the package, callbacks import one another, public names, and the few names that no rule of a user needs."""
    others: dict[str, set[str]] = {}
    for path in sorted((REPOSITORY / "callbacks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert "fl_lightning" not in ast.unparse(node), path
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            names = {alias.name for alias in node.names}
            if node.module == "fl_lightning":
                assert names <= {*fl_lightning.__all__}, path
            elif node.module.startswith("fl_lightning.") and not node.module.startswith("fl_lightning.callbacks"):
                others.setdefault(node.module, set()).update(names)
    assert others == NO_USERS_BUSINESS, "make the name public in fl_lightning/__init__.py, or say why no user needs it"


def test_a_public_name_is_listed_once() -> None:
    """In fl_lightning/__init__.py, where imports for type checkers are the list: one name a line, as ``X as X``."""
    text = (REPOSITORY / "fl_lightning/__init__.py").read_text()
    listed = re.findall(r"^    from (?:\S+) import (.*)$", text, re.MULTILINE)
    assert listed == [f"{name} as {name}" for name in fl_lightning.__all__]
    assert len({*listed}) == len(listed)


def test_the_words_of_a_table_are_the_classs_own() -> None:
    class Example(lists.FederatedCallback):
        """Does this (Author et al., 2020, eq. 3), as :class:`FedNova` does. And that.

        More of it.
        """

        settles = frozenset({"base weights", "updates"})

        def __init__(self, mu: float, rho: float = 0.1) -> None: ...

    assert lists.what_it_does(Example) == "Does this (Author et al., 2020, eq. 3), as `FedNova` does"
    assert lists.arguments(Example) == "mu, rho"
    assert lists.settled(Example) == ["updates", "base weights"]
    assert lists.kind(Example) == "correct the updates"


def test_the_paper_of_a_table_is_the_docstrings_up_to_its_year() -> None:
    class Equation:
        """Weighs by f(x) (RFA; Author et al., 2020; Other, 2021, Algorithm 1)."""

    class Undated:
        """Does that (slides of Author). And (Other, 2021)."""

    class Own:
        """Looks (not at all) at what is there."""

    assert lists.words_and_paper(Equation) == ("Weighs by f(x)", "RFA; Author et al., 2020; Other, 2021")
    assert lists.words_and_paper(Undated) == ("Does that", "slides of Author")
    assert lists.words_and_paper(Own) == ("Looks (not at all) at what is there", "")


def test_a_rule_that_reviewers_expect_has_a_paper() -> None:
    rows = [line.split(" | ") for line in lists.baselines()[2:]]
    assert [row[0] for row in rows] == [f"| `{name}`" for name in lists.BASELINES]
    assert all(re.search(r"\d{4} \|$", row[-1]) for row in rows)


def project() -> dict[str, Any]:
    return dict(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"])


def test_the_version_is_the_same_everywhere() -> None:
    """That of the last release, which the citation names, or of the next one while it is developed."""
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    headings = re.findall("^## (.*)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    version, released = Version(project()["version"]), Version(citation["version"])
    assert headings[:2] == ["Unreleased", f"{released} ({citation['date-released']})"]
    assert version == released or (version.is_devrelease and version.release > released.release)
    assert citation["license"] == project()["license"]
    assert citation["authors"] == project()["authors"]


def test_what_is_not_released_stands_under_what_it_is() -> None:
    """From the first line on, so that a release has only to read it."""
    unreleased = (REPOSITORY / "CHANGELOG.md").read_text().split("\n## ")[1]
    head, *parts = unreleased.split("\n### ")
    assert not re.search("^- ", head, re.MULTILINE), "each line stands under a heading"
    names = [part.splitlines()[0] for part in parts]
    assert names == [name for name in ("What breaks", "Removed", "Added", "Changed", "Fixed") if name in names]


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall("^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith("https://"):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_commands_names_each(command: str) -> None:
    """What the options are, the command's help says."""
    assert f"`{command}`" in (REPOSITORY / "docs" / "reference" / "commands.md").read_text()


def test_pictures_of_the_pages_are_small() -> None:
    """At most 150 kB each and 3 MB together, and the results 4 MB: a clone downloads all that there ever was."""
    sizes = {path: path.stat().st_size for path in (REPOSITORY / "docs").rglob("*") if path.is_file()}
    pictures = {path: size for path, size in sizes.items() if path.suffix in (".png", ".svg", ".pdf", ".jpg")}
    assert pictures
    assert not [path for path, size in pictures.items() if size > 150_000]
    assert sum(pictures.values()) <= 3_000_000
    assert (
        sum(size for path, size in sizes.items() if path.is_relative_to(REPOSITORY / "docs" / "results")) <= 4_000_000
    )


def test_paths_and_targets_that_contributing_names_exist() -> None:
    """And the folders of rules are all named, in the table of rooms and in the check list."""
    pages = [(REPOSITORY / name).read_text() for name in ("CONTRIBUTING.md", "docs/contributing.md")]
    for folder in lists.FOLDERS:
        assert all(re.search(rf"\b{folder}/`", page) for page in pages), folder
    text = "\n".join(pages)
    folders = "callbacks|configs|datamodules|docs|fl_lightning|tests"
    paths = set(re.findall(rf"(?<![\w./])(?:{folders}|\.ci|\.github)/[\w./-]*|`[\w-]+\.(?:cff|md|toml)`", text))
    assert {"callbacks/monitors/", "datamodules/__init__.py", "`CITATION.cff`", "tests/lib/"} <= paths
    assert not [path for path in paths if not (REPOSITORY / path.strip("`")).exists()]
    targets = set(re.findall("^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert {"test", "lists"} <= set(re.findall("(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets


def test_the_workflow_runs_the_tests_on_every_python_of_the_classifiers() -> None:
    """On every push; the slow tests run at night, on one Python."""
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "test.yml").read_text())
    job, slow = (workflow["jobs"][name] for name in ("test", "slow"))
    pythons = [name.rpartition(" ")[2] for name in project()["classifiers"] if "Python :: 3." in name]
    assert {"push", "pull_request", "schedule"} <= workflow["on"].keys()
    assert job["strategy"]["matrix"]["python"] == pythons
    assert ".ci/run test" in [step.get("run") for step in job["steps"]]
    assert ".ci/run test-slow" in [step.get("run") for step in slow["steps"]]
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_the_forms_of_issues_have_what_a_form_needs(name: str) -> None:
    form = yaml.safe_load((REPOSITORY / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert form["name"]
    assert form["description"]
    assert all(part["type"] in ("textarea", "input") and part["attributes"]["label"] for part in form["body"])
    assert len({part["id"] for part in form["body"]}) == len(form["body"])


def test_an_image_gets_what_a_build_needs() -> None:
    """All that the wheel is made of, and the demo."""
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    assert {"fl_lightning", "callbacks", "configs", "datamodules", "models", "pyproject.toml", "examples"} <= let_in
    assert {project()["readme"], *project()["license-files"], "constraints.txt"} <= let_in
    assert not [name for name in let_in if not (REPOSITORY / name).exists()]
