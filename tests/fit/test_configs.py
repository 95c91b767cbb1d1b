"""Config files that build on others, the grid of an experiment, and options known before the parser is."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lib.command import TINY, run

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.command import FederatedCLI
from fl_lightning.fit.configs import (
    CONFIGS,
    bases,
    check_options,
    find_config,
    name_of,
    resolve_configs,
    shipped_configs,
)
from fl_lightning.fit.helps.stored import OPTIONS
from fl_lightning.fit.messages import ParsingError, mistake_in
from fl_lightning.fit.parser import options_of
from fl_lightning.fit.read_config import config_of, parser_of
from fl_lightning.reproduce.experiments.grid import grid

TABLE = """
base: parts/tiny.yaml
trainer: {max_epochs: 1}
data:
  init_args:
    partition: {init_args: {alpha: 3.0}}
"""


@pytest.fixture(autouse=True)
def _table() -> None:
    """Write table.yaml, which builds on parts/tiny.yaml."""
    Path("parts").mkdir()
    Path("parts/tiny.yaml").write_text(TINY)
    Path("table.yaml").write_text(TABLE)


def printed(*args: str) -> dict[str, Any]:
    return config_of(args)


def test_a_config_says_what_differs_from_its_base() -> None:
    """Two rounds and alpha 0.1 in the base; one round and alpha 3 in the table; 4 clients and the 2NN in both."""
    config = printed("--config", "table.yaml")
    assert config["trainer"]["max_epochs"] == 1
    assert config["data"]["init_args"]["partition"]["init_args"]["alpha"] == 3.0
    assert config["data"]["init_args"]["num_clients"] == 4
    assert config["model"]["client"]["init_args"]["network"]["class_path"].endswith("TwoNN")


def test_an_experiment_may_lie_in_a_folder_and_its_config_stands_alone() -> None:
    """As the papers' tables do: it trains, and goes on from its last checkpoint; no word of the base is left."""
    name = ["--experiment", "paper/table-1"]
    assert run("fit", "--config", "table.yaml", *name).status == 0
    result = run("fit", "--config", "table.yaml", *name, "--trainer.max_epochs", 2, "--ckpt_path", "last")
    assert result.status == 0, result.err
    assert len(Path("runs/paper/table-1/version_0/metrics.csv").read_text().splitlines()) == 3
    assert [path.name for path in Path("runs").iterdir()] == ["paper"]
    saved = yaml.safe_load(Path("runs/paper/table-1/version_0/config.yaml").read_text())
    assert {"base", "grid"}.isdisjoint(saved)
    assert {"base", "grid"}.isdisjoint(printed("--config", "table.yaml"))
    assert saved["data"]["init_args"]["partition"]["init_args"]["alpha"] == 3.0


def test_the_run_is_named_after_the_config_and_not_its_base() -> None:
    assert name_of([*bases("table.yaml"), "table.yaml", "parts/tiny.yaml"]) == "table"


def test_bases_come_first_and_the_most_basic_of_them_before_the_others() -> None:
    Path("top.yaml").write_text("base: [table.yaml, parts/other.yaml]\n")
    Path("parts/other.yaml").write_text("seed_everything: 3\n")
    assert bases("top.yaml") == ["parts/tiny.yaml", "table.yaml", "parts/other.yaml"]
    expected = [f"--config={name}" for name in ("parts/tiny.yaml", "table.yaml", "parts/other.yaml", "top.yaml")]
    assert resolve_configs(["fit", "-c", "top.yaml", "--x"]) == ["fit", *expected, "--x"]
    assert resolve_configs(["fit", "--config=top.yaml"]) == ["fit", *expected]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("base: nowhere.yaml", "names nowhere.yaml, but there is neither a file nowhere.yaml nor a shipped config"),
        ("base: parts/no.yaml", "there is neither a file parts/no.yaml nor a shipped config parts/no.yaml"),
        ("base: a.yaml", "builds on a.yaml"),
    ],
)
def test_refuses_bases_that_lead_nowhere(content: str, reason: str) -> None:
    Path("a.yaml").write_text(content)
    with pytest.raises(ConfigurationError, match=re.escape(reason)):
        bases("a.yaml")


@pytest.mark.parametrize("name", ["digits_gh.yaml", "digits_gh", "base/digits.yaml", "papers/fedgh-slides/table-1"])
def test_a_base_may_be_a_shipped_config(name: str) -> None:
    """By the names that ``--config`` knows, from any folder; the shipped config's own base comes before it."""
    Path("parts/mine.yaml").write_text(f"base: {name}\ntrainer: {{max_epochs: 3}}\n")
    shipped = find_config(name)
    assert Path(shipped).is_relative_to(CONFIGS)
    assert bases("parts/mine.yaml") == [*bases(shipped), shipped]
    config, plain = printed("--config", "parts/mine.yaml"), printed("--config", name)
    assert config["trainer"].pop("max_epochs") == 3
    del plain["trainer"]["max_epochs"]
    del config["experiment"], plain["experiment"]
    assert config == plain


def test_a_file_of_ones_own_goes_before_a_shipped_base() -> None:
    """Beside the config, wherever the command runs; the shipped config of that name has another number of rounds."""
    Path("parts/digits_gh.yaml").write_text(TINY)
    Path("parts/mine.yaml").write_text("base: digits_gh.yaml\n")
    Path("other.yaml").write_text("base: digits_gh.yaml\n")
    assert bases("parts/mine.yaml") == ["parts/digits_gh.yaml"]
    assert bases("other.yaml")[-1] == str(CONFIGS / "digits_gh.yaml")


def test_refuses_a_circle() -> None:
    Path("a.yaml").write_text("base: b.yaml")
    Path("b.yaml").write_text("base: a.yaml")
    with pytest.raises(ConfigurationError, match=r"builds on b\.yaml"):
        bases("a.yaml")


def test_a_grid_is_the_product_of_its_axes() -> None:
    """2 alphas, 2 methods: four cells; the options are the command line's, and they parse."""
    Path("grid.yaml").write_text(
        TABLE
        + """
grid:
  alpha:
    0.5: {data.partition.alpha: 0.5}
    .inf: {data.partition.alpha: .inf}
  method:
    FedAvg: {}
    FedProx+GH:
      trainer.callbacks: [{class_path: FedProx, init_args: {mu: 0.1}}, {class_path: GradientHarmonization}]
"""
    )
    cells = grid("grid.yaml")
    assert [dict(cell.labels) for cell in cells] == [
        {"alpha": alpha, "method": method} for alpha in (0.5, float("inf")) for method in ("FedAvg", "FedProx+GH")
    ]
    config = printed("--config", "grid.yaml", *cells[-1].options)
    assert config["data"]["init_args"]["partition"]["init_args"]["alpha"] == float("inf")
    names = [callback["class_path"].split(".")[-1] for callback in config["trainer"]["callbacks"]]
    assert names == ["FedProx", "GradientHarmonization"]
    assert cells[0].options == ("--data.partition.alpha=0.5",)


def test_an_axis_may_choose_from_its_base() -> None:
    Path("parts/methods.yaml").write_text("grid: {method: {A: {}, B: {seed_everything: 2}, C: {seed_everything: 3}}}")
    Path("grid.yaml").write_text("base: parts/methods.yaml\ngrid: {method: [C, A]}")
    assert [(cell.labels["method"], cell.options) for cell in grid("grid.yaml")] == [
        ("C", ("--seed_everything=3",)),
        ("A", ()),
    ]


def test_several_grids_follow_each_other() -> None:
    Path("grid.yaml").write_text("grid: [{a: {1: {}, 2: {}}}, {a: {3: {}}, b: {x: {}}}]")
    assert [dict(cell.labels) for cell in grid("grid.yaml")] == [{"a": 1}, {"a": 2}, {"a": 3, "b": "x"}]


def test_without_a_grid_there_is_one_point() -> None:
    (cell,) = grid("table.yaml")
    assert (dict(cell.labels), cell.options) == ({}, ())


@pytest.mark.parametrize("axis", ["[0.1, 0.2]", "3", "{0.1: 3}"])
def test_refuses_an_axis_without_options(axis: str) -> None:
    Path("grid.yaml").write_text(f"grid: {{alpha: {axis}}}")
    with pytest.raises(ConfigurationError, match=r"grid\.alpha must map labels to options"):
        grid("grid.yaml")


def test_parts_are_no_experiments() -> None:
    names = shipped_configs()
    assert "digits_gh.yaml" in names
    assert not [name for name in names if "base" in name.split("/")]


def test_a_misspelt_config_beside_the_user() -> None:
    Path("hospitals.yaml").write_text("experiment: hospitals\n")
    with pytest.raises(ConfigurationError, match=r"such as hospitals\.yaml, "):
        find_config("hospital.yaml")


@pytest.mark.parametrize("content", ["5", "[1]", "[{a: {1: {}}}, x]"])
@pytest.mark.parametrize("own", [True, False])
def test_a_grid_that_names_no_axes(content: str, own: bool) -> None:
    """In the config, or in a file that it builds on."""
    Path("base.yaml").write_text(f"grid: {content}")
    Path("grid.yaml").write_text("base: base.yaml\ngrid: {a: {1: {}}}")
    with pytest.raises(ConfigurationError, match=r"base.yaml: grid must map axes to their labels, or list such grids"):
        grid("base.yaml" if own else "grid.yaml")


def test_a_base_with_several_grids_gives_its_labels() -> None:
    Path("base.yaml").write_text("grid: [{a: {1: {num_threads: 1}}}, {a: {2: {}}, b: [x]}]")
    Path("grid.yaml").write_text("base: base.yaml\ngrid: {a: [2]}")
    assert [dict(cell.labels) for cell in grid("grid.yaml")] == [{"a": 2}]
    for axes in ("{a: [[2]]}", "{b: [x]}"):
        Path("grid.yaml").write_text(f"base: base.yaml\ngrid: {axes}")
        with pytest.raises(ConfigurationError, match=r"or list labels of its base"):
            grid("grid.yaml")


# Wrong options

WRONG = [
    *("fit --rounds 3", "fit --lr -1", "fit --verbose --experiment x", "fit --rounds=a=b", "fit --trainer.max_epoch 3"),
    *("fit --model.local_epoch=3", "fit table.yaml --rounds 3", "fit 10", "fit --ckpt_pth last", "fit --x.y.z"),
    *("data --ckpt_path last", "test --resume_changed true", "predict --verbose", "validate --callbacks FedProx"),
]
LEFT = [  # to the parser
    *("fit --data.rounds 3", "fit --trainer.callbacks.muu 1", "fit --model.client.lr 1", "fit --model.seed 3"),
    *("fit --rounds 3 --help", "fit --rounds 3 --print_config", "fit --rounds 3 --data.help", "fit -- --rounds 3"),
    *("fit --trainer.callbacks+=FedProx", "fit -c table.yaml", "--rounds 3", "fit --trainer t.yaml --model=m.yaml"),
]


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_option_is_refused_in_the_words_of_the_parser(words: str) -> None:
    """Those of the command line that Lightning parses."""
    with pytest.raises(ConfigurationError) as refused:
        check_options(words.split())
    with pytest.raises(ParsingError) as by_parser:
        FederatedCLI(resolve_configs([*words.split(), "--config", "table.yaml"]))
    assert mistake_in(by_parser.value) == str(refused.value)


@pytest.mark.parametrize("words", LEFT)
def test_what_a_class_decides_is_left_to_the_parser(words: str) -> None:
    check_options(words.split())


@pytest.mark.parametrize("command", FederatedCLI.subcommands())
def test_no_option_of_a_command_is_refused(command: str) -> None:
    """Every name that its parser has."""
    for name in options_of(parser_of(command)):
        check_options([command, f"--{name}", "table.yaml"])


def test_with_another_version_of_lightning_the_parser_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = re.sub("^lightning: .*$", "lightning: 0.1", OPTIONS.read_text(), flags=re.MULTILINE)
    (tmp_path / "options.yaml").write_text(text)
    monkeypatch.setattr("fl_lightning.fit.configs.OPTIONS", tmp_path / "options.yaml")
    check_options(["fit", "--rounds", "3"])


@pytest.mark.parametrize("words", ["--trainer.accelerator fifo", "--trainer.accelerator=fifo", "--data.root ./fifo"])
def test_a_value_that_names_a_fifo_is_refused(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser would open it, and wait for a writer; where no FIFO has the name, the words are a value like any."""
    monkeypatch.chdir(tmp_path)
    check_options(["fit", *words.split()])
    os.mkfifo("fifo")
    with pytest.raises(ConfigurationError, match="fifo, which is a FIFO here"):
        check_options(["fit", *words.split()])
