"""Configs, commands, classes and options that do not exist, and config files that cannot be read: one line each."""

import re
from pathlib import Path

import pytest
from lib.command import TINY, refused

from fl_lightning import ConfigurationError
from fl_lightning.fit.configs import find_config, layers, shipped_configs
from fl_lightning.fit.helps.stored import OPTIONS, check_classes, texts_in
from fl_lightning.fit.read_config import config_of
from fl_lightning.runs.folder.yaml_text import read_yaml


def refusal(*args: str) -> str:
    """The message on the arguments of ``fit``."""
    with pytest.raises(ConfigurationError) as raised:
        config_of(args)
    return str(raised.value)


@pytest.mark.parametrize("spelling", [["--config", "mnist_hg.yaml"], ["--config=mnist_hg.yaml"], ["-c", "mnist_hg"]])
def test_unknown_config(spelling: list[str]) -> None:
    message = refusal(*spelling)
    named = "give a config file or a shipped config, such as mnist_gh.yaml, cifar10_gh.yaml, rules/monitors.yaml: "
    rest = r"there is no mnist_hg(\.yaml)?, and fl-lightning fit --config\.help lists what is shipped"
    assert re.fullmatch(named + rest, message)


CLASSES = {
    "a rule": ("--trainer.callbacks+=GradientHarmonisation", "GradientHarmonization"),
    "a rule in other letters": ("--trainer.callbacks+=fednova", "FedNova"),
    "a data module": ("--data=Digitz", "Digits"),
    "a partition": ("--data.partition=Dirichlett", "Dirichlet"),
    "a module": ("--model.client=ImageClasifier", "ImageClassifier"),
    "a network": ("--model.client.network=TwoNNN", "TwoNN"),
    "an optimizer": ("--model.client.optimizer=SGDD", "SGD"),
    "a logger": ("--trainer.logger=WandbLoger", "WandbLogger"),
}


@pytest.mark.parametrize("what", CLASSES)
def test_misspelt_class(what: str) -> None:
    argument, nearest = CLASSES[what]
    message = refusal("--config=tiny.yaml", argument)
    key, name = argument.lstrip("-").replace("+", "").split("=")
    assert message.endswith(f"there is no class {name}; did you mean {nearest}?")
    assert message.split(":")[0] in (key, key.rpartition(".")[2]), "says where"


def test_misspelt_class_in_the_config() -> None:
    Path("typo.yaml").write_text(TINY.replace("Digits", "Digitz"))
    assert refusal("--config", "typo.yaml") == "data: there is no class Digitz; did you mean Digits?"


CLASS_NAMES = read_yaml(OPTIONS, OPTIONS.read_text())["classes"]


@pytest.mark.parametrize("what", ["a rule", "a rule in other letters", "a data module", "a partition", "a module"])
def test_a_misspelt_class_is_refused_without_torch_in_the_words_of_the_parser(what: str) -> None:
    option, _, name = CLASSES[what][0].removeprefix("--").partition("=")
    with pytest.raises(ConfigurationError) as refused:
        check_classes([*texts_in({option: name})], CLASS_NAMES)
    assert str(refused.value) == refusal("--config=tiny.yaml", CLASSES[what][0])


LEFT = {
    "a class of the user": {"data": "mine.MyData", "trainer": {"callbacks": ["OtherOfMine"]}},
    "a class of another option": {"data": "FedAvg"},
    "a network": {"model": {"client": {"init_args": {"network": "TwoNNN"}}}},
    "nothing": {"data": {"init_args": {"availability": "null"}}},
    "a file": {"data": "settings"},
    "an argument of a rule": {"trainer": {"callbacks": [{"class_path": "Scaffold", "init_args": {"option": "II"}}]}},
}


@pytest.mark.parametrize("what", LEFT)
def test_a_name_that_may_be_right_is_left_to_the_parser(what: str) -> None:
    Path("settings").write_text("class_path: Digits")
    check_classes([*texts_in(LEFT[what])], CLASS_NAMES)


def test_no_class_of_a_shipped_config_is_refused() -> None:
    """Each is refused with another letter, so that the test reads what it says."""
    for name in shipped_configs():
        for _, content in layers(find_config(name)):
            texts = [*texts_in(content)]
            check_classes(texts, CLASS_NAMES)
            for option, text in texts:
                if option in CLASS_NAMES and text.isidentifier():
                    with pytest.raises(ConfigurationError, match=f"{option}: there is no class {text}x"):
                        check_classes([(option, f"{text}x")], CLASS_NAMES)


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere.MyRule", "No module named 'nowhere'"), ("mine.MyRule", "has no attribute 'MyRule'")]
)
def test_users_class_that_is_not_there(name: str, message: str) -> None:
    Path("mine.py").write_text("")
    said = refusal("--config=tiny.yaml", f"--trainer.callbacks+={name}")
    assert said.startswith(f"trainer.callbacks: {name}: ")
    assert said.endswith(message)


def test_argument_of_an_argument_that_a_users_module_does_not_have() -> None:
    """The answer names the module's own arguments; it does not propose the option that was typed."""
    Path("mine.py").write_text(
        "import lightning\n\n\nclass Net(lightning.LightningModule):\n    def __init__(self, lr: float = 0.1): ...\n"
    )
    said = refusal("--config=tiny.yaml", "--model.client=mine.Net", "--model.client.optimizer.lr=0.2")
    assert said == "there is no option optimizer.lr: Net has lr"


OPTIONS = {
    "--data.num_clinets=2": "num_clients",
    "--data.partitoin.alpha=1": "partition.alpha",
    "--model.client.optimzer.lr=0.1": "optimizer.lr",
    "--data.partition.alhpa=1": "alpha",
    "--model.local_epcohs=2": "model.local_epochs",
    "--model.client.network.in_fetaures=64": "in_features",
    "--ckpt_pth=last": "ckpt_path",
    "--model.local_epoch=2": "model.local_epochs",  # abbreviations are misspelt, too
    "--trainer.max_epoch=2": "trainer.max_epochs",
}


OTHERS = {
    "--model.client.optimizer.learning_rate=1": "; did you mean lr?",
    "--model.client.network.width=3": "there is no option width: TwoNN has num_classes, in_features",
    "--data.partition.alphas=3": "there is no option alphas; did you mean alpha?",
}


@pytest.mark.parametrize("argument", OPTIONS)
def test_misspelt_option(argument: str) -> None:
    message = refusal("--config=tiny.yaml", argument)
    assert re.search(r"there is no option -*[\w.]+(: \w+ has [\w, ]+)?; did you mean [^;]+$", message)
    assert re.search(rf"did you mean -*(\w+\.)*{OPTIONS[argument]}\?$", message)


@pytest.mark.parametrize("argument", OTHERS)
def test_option_of_another_class(argument: str) -> None:
    """The options of the class that is meant are named, though some other class has that option."""
    assert refusal("--config=tiny.yaml", argument).endswith(OTHERS[argument])


def test_an_option_of_no_class_where_a_list_may_stand() -> None:
    """The partition of PartitionedData may be a list of clients."""
    message = refusal("--config=tiny.yaml", "--data=PartitionedData", "--data.partition=IID", "--data.partition.mu=3")
    assert message == "data.partition: expected class with the option mu, got 3"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("max_epochs", "max_epoch"),
        ("trainer", "trianer"),
        ("num_clients", "num_client"),
        ("alpha", "alpah"),
        ("network", "netwrok"),
    ],
)
def test_misspelt_option_in_the_config(right: str, wrong: str) -> None:
    """The nearest match is named here too."""
    Path("typo.yaml").write_text(TINY.replace(f"{right}:", f"{wrong}:"))
    message = refusal("--config", "typo.yaml")
    assert re.search(rf"\b{wrong}\b", message)
    assert re.search(rf"did you mean (\w+\.)*{right}(\.\w+)?\?$", message)


def test_an_option_of_the_last_release_in_the_config() -> None:
    """It is not taken for the nearest one, local_steps."""
    Path("old.yaml").write_text(TINY.replace("model:", "model:\n  local_graph: false"))
    message = refusal("--config", "old.yaml")
    assert "there is no option" in message
    assert message.endswith(
        "leave it out: local steps are no longer captured as CUDA graphs, which keep what a step reads"
    )


def test_unknown_command() -> None:
    message = refused("fti", "--config", "tiny.yaml")
    assert message.startswith("there is no command fti: ")
    assert message.endswith("; did you mean fit?")


def test_no_yaml() -> None:
    Path("broken.yaml").write_text("trainer: [\n")
    said = refusal("--config", "broken.yaml")
    assert said.startswith("broken.yaml is not YAML: line 2, column 1: did not find expected node content")


def bomb() -> str:
    """YAML whose nine lines stand for 9⁹ values."""
    lines = [f"a{i}: &a{i} [{', '.join(9 * [f'*a{i - 1}' if i else 'x'])}]" for i in range(9)]
    return "\n".join([*lines, "trainer: *a8", ""])


FILES = {
    "latin-1": (f"{TINY}# caf\xe9\n".encode("latin-1"), "is not text in UTF-8: save the file as UTF-8"),
    "UTF-16": (TINY.encode("utf-16"), "is not text in UTF-8: save the file as UTF-8"),
    "base: 5": (f"{TINY}\nbase: 5".encode(), "base must be the name of a file, or a list of names, got 5"),
    "base: [[]]": (f"{TINY}\nbase: [[]]".encode(), "base must be the name of a file, or a list of names, got [[]]"),
    "trainer: null": (b"trainer: null", "trainer must hold names and values, or name a file"),
    "model: 5": (b"model: 5", "model must hold names and values, or name a file, got 5"),
    "a bomb": (bomb().encode(), "its aliases (*name) stand for more than 100,000 values"),
    "an alias of itself": (b"trainer: &a [*a]", "its aliases (*name) stand for more than 100,000 values"),
    "a key twice": (
        b"trainer: {max_epochs: 1}\nmodel: {}\ntrainer: {}",
        "trainer stands twice, on lines 1 and 3: make",
    ),
    "a key twice in a value": (b"trainer: {callbacks: {class_path: A, class_path: B}}", "class_path stands twice"),
    "a null byte": (b"trainer: \0", "is not YAML: unacceptable character"),
}


@pytest.mark.parametrize("kind", FILES)
def test_odd_config_file(kind: str) -> None:
    content, said = FILES[kind]
    Path("odd.yaml").write_bytes(content)
    assert said in refusal("--config", "odd.yaml")


def test_base_that_is_a_folder() -> None:
    Path("loop.yaml").write_text("base: folder.yaml")
    Path("folder.yaml").mkdir()
    assert "neither a file folder.yaml nor a shipped config folder.yaml" in refusal("--config", "loop.yaml")
