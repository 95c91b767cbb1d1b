"""The answers to messages of libraries. Each is provoked by an error that the library itself raises."""

import re
from pathlib import Path

import pytest
from lib.command import TINY
from lightning import Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.demos.boring_classes import BoringModel

from fl_lightning import ConfigurationError
from fl_lightning.fit import messages
from fl_lightning.fit.messages import MEANT, REFUSED_VALUES, UNKNOWN_OPTIONS, mistake_in, option_meant_by
from fl_lightning.fit.parser import options_of
from fl_lightning.fit.read_config import config_of, parser_of
from fl_lightning.runs.config.settings import own_settings

PROVOKED = {  # by the answer's name: the arguments of fit after --config=tiny.yaml, and what is said
    "no_such_option": {
        "--rounds=10": "there is no option --rounds; the number of rounds is --trainer.max_epochs 10",
        "--ckpt_pth=last": "there is no option --ckpt_pth; did you mean --ckpt_path?",
        "--model.server_optimzer.lr=1": (
            "there is no option --model.server_optimzer.lr; did you mean --model.server_optimizer.lr?"
        ),
        "--plot=x.png": "there is no option --plot; --help lists what there is",
    },
    "no_option": {
        "extra.yaml": "expected an option, got extra.yaml: a config is --config extra.yaml",
        "extra": "expected an option, got extra: --help lists the options",
    },
    "no_such_option_of_a_config": {
        "--config=typo.yaml": "there is no option max_epoch; did you mean trainer.max_epochs?",
    },
    "help_of_a_class": {
        "--help=FedProx": (
            "--help takes no value: a class is described by --trainer.callbacks.help FedProx, --data.help FedProx"
        ),
    },
    "no_such_option_of_the_class": {
        "--data.partition.alhpa=1": "data.partition: there is no option alhpa; did you mean alpha?",
        "--model.client.optimizer.learning_rate=1": "there is no option learning_rate; did you mean lr?",
        "--data.lr=0.1": "data: there is no option lr; the clients' learning rate is --model.client.optimizer.lr",
        "--model.client.network.width=3": "there is no option width: TwoNN has num_classes, in_features",
        "--trainer.callbacks={class_path: FedProx, init_arg: {mu: 1}}": (
            "trainer.callbacks: there is no option init_arg; did you mean init_args?"
        ),
        "--trainer.callbacks={class_path: FedProx, init_args: {nu: 1}}": (
            "trainer.callbacks: there is no option nu; --trainer.callbacks.help CLASS lists those of a class"
        ),
    },
    "no_import": {
        "--trainer.callbacks+=nowhere.MyRule": "trainer.callbacks: nowhere.MyRule: No module named 'nowhere'",
    },
    "arguments_in_brackets": {
        "--trainer.callbacks+=FedAvg(weighting=uniform)": (
            "trainer.callbacks: write the arguments of FedAvg as options: --trainer.callbacks+=FedAvg "
            "--trainer.callbacks.weighting=uniform"
        ),
        "--data.sampler=UniformSampler(3)": (
            "data.sampler: write the arguments of UniformSampler as options: --data.sampler=UniformSampler "
            "--data.sampler.OPTION=3"
        ),
    },
    "no_such_class": {
        "--data=Digitz": "data: there is no class Digitz; did you mean Digits?",
        "--trainer.callbacks+=Median": (
            "trainer.callbacks: there is no class Median; did you mean CoordinateMedian or GeometricMedian?"
        ),
        "--data=FedAvg": "data: FedAvg is not of the kind of classes that this option takes",
    },
    "no_function": {
        "--data.collate_fn=nowhere.f": (
            "data.collate_fn: expected a function, as in my_module.my_function, got something else: No module named "
            "'nowhere'"
        ),
    },
    "no_value": {
        "--data.partition=ClassesPerClient": (
            "data.partition: give a value for classes: --data.partition.classes VALUE"
        ),
        "--data=Table": "data: give a value for train, target",
    },
    "another_type": {"--data.num_clients=many": "data.num_clients: expected int, got many"},
    "none_of_several_types": {"--trainer.max_epochs=many": "trainer.max_epochs: expected int or null, got many"},
}
ROWS = [(answer, argument) for answer, arguments in PROVOKED.items() for argument in arguments]


def refusal(argument: str) -> str:
    """The message on an argument of ``fit``."""
    with pytest.raises(ConfigurationError) as raised:
        config_of(["--config=tiny.yaml", argument])
    return str(raised.value)


def test_every_answer_is_provoked() -> None:
    assert [answer.__name__ for _, answer in (*UNKNOWN_OPTIONS, *REFUSED_VALUES)] == [*PROVOKED]


@pytest.mark.parametrize(("answer", "argument"), ROWS)
def test_an_answer_to_the_argument_parser(answer: str, argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its row, something else is said: no other row gives this answer."""
    Path("typo.yaml").write_text(TINY.replace("max_epochs:", "max_epoch:"))
    said = PROVOKED[answer][argument]
    assert refusal(argument) == said
    for table in ("UNKNOWN_OPTIONS", "REFUSED_VALUES"):
        others = [row for row in getattr(messages, table) if row[1].__name__ != answer]
        monkeypatch.setattr(messages, table, others)
    assert refusal(argument) != said


@pytest.mark.parametrize("words", MEANT)
def test_options_that_are_meant_exist(words: str) -> None:
    options = {*options_of(parser_of("fit")), *own_settings(config_of(["--config=tiny.yaml"]))}
    for word in words.split():
        hint = option_meant_by(f"model.{word}", "2")
        assert hint
        assert options.issuperset(re.findall(r"--([\w.]+)", hint))


def test_an_error_of_lightnings_trainer_is_a_mistake() -> None:
    with pytest.raises(MisconfigurationException) as raised:
        Trainer(accelerator="cpu", devices=0)
    assert mistake_in(raised.value) == "`Trainer(devices=0)` value is not a valid input using cpu accelerator."


def test_a_metric_that_early_stopping_misses_is_a_mistake(tmp_path: Path) -> None:
    trainer = Trainer(
        max_epochs=1, limit_train_batches=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, default_root_dir=tmp_path, callbacks=[EarlyStopping(monitor="val/nope")],
    )  # fmt: skip
    with pytest.raises(RuntimeError) as raised:
        trainer.fit(BoringModel())
    assert str(mistake_in(raised.value)).startswith("Early stopping conditioned on metric `val/nope` which is not av")
