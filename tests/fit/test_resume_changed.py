"""A run that goes on with other settings: free, refused by name, or recorded; never in silence.

Every option of ``fit``, and every argument of the classes that a config names, is taken from the parsers themselves and
changed, one at a time. Comparing needs no training; some of the outcomes are then seen in real runs.
"""

import copy
import operator
import shutil
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from pydoc import locate
from typing import Any

import numpy as np
import pytest
import yaml
from lib.command import contents, fit, process, refused, restored, rows, run
from lib.resumed import assert_same

from fl_lightning.fit.parser import Parser
from fl_lightning.fit.read_config import config_of, parser_of
from fl_lightning.runs.config.resuming import changed_settings

RUN = Path("runs/tiny/version_0")
LAST = RUN / "checkpoints/last.ckpt"
FEDPROX = ("--trainer.callbacks+=FedProx", "--trainer.callbacks.mu=0.1")
# What the tests expect to be free. An option that is new is refused until it is listed as free, here and there.
FREE = {
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy", "trainer.logger"),
    *("trainer.max_epochs", "trainer.min_epochs", "trainer.max_steps", "trainer.min_steps", "trainer.max_time"),
    *("trainer.limit_val_batches", "trainer.limit_test_batches", "trainer.limit_predict_batches"),
    *("trainer.check_val_every_n_epoch", "trainer.num_sanity_val_steps", "trainer.inference_mode"),
    *("trainer.log_every_n_steps", "trainer.enable_autolog_hparams", "trainer.model_registry"),
    *("trainer.enable_checkpointing", "trainer.enable_model_summary", "trainer.enable_progress_bar"),
    *("trainer.profiler", "trainer.detect_anomaly", "trainer.default_root_dir"),
    *("model.client_states", "model.cohort_memory", "model.on_hidden_state"),
    *("data.num_workers", "data.clients_per_batch", "data.client_names", "data.eval_batch_size"),
    *("experiment", "num_threads", "ckpt_path", "weights_only"),
}
# Not in config.yaml: an optimizer's parameters, and the seeds that seed_everything sets, belong to the run.
NOT_OF_A_CONFIG = {
    "config",
    "base",
    "grid",
    "scale",
    "paper",
    "network",
    "resume_changed",
    "params",
    "seed",
    "model.seed",
}


pytestmark = pytest.mark.usefixtures("last")


# Every option, changed one at a time

Place = tuple[Any, ...]  # keys from the config's root to a value


def places(parser: Any, config: Any, above: Place = ()) -> Iterator[Place]:
    """The place in a config of each option of a parser, and of the arguments of the classes there."""
    for action in parser._actions:
        if not hasattr(action, "_typehint") or action.dest.endswith(".help") or action.dest in NOT_OF_A_CONFIG:
            continue
        place = (*above, *action.dest.split("."))
        yield place
        value = reduce(operator.getitem, action.dest.split("."), config)
        many = isinstance(value, list)
        for at, each in enumerate(value if many else [value]):
            if is_class(each):
                below = Parser()
                below.add_class_arguments(locate(each["class_path"]))
                where = (*place, at) if many else place
                yield from places(below, each["init_args"], (*where, "init_args"))


def is_class(value: Any) -> bool:
    """Whether a value is a class with its arguments."""
    return isinstance(value, dict) and "init_args" in value


def named(place: Place) -> str:
    """The dotted name of a place, as on the command line."""
    return ".".join(key for key in place if isinstance(key, str) and key != "init_args")


def put(config: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """A copy of a config with one value replaced."""
    config = copy.deepcopy(config)
    reduce(operator.getitem, place[:-1], config)[place[-1]] = value
    return config


def at(config: dict[str, Any], place: Place) -> Any:
    return reduce(operator.getitem, place, config)


OTHER = "another value"  # comparing asks no parser whether it is one


def test_every_option_of_fit_is_free_or_refused_by_its_name() -> None:
    """And with both values. What is free is known to the test: a new option must not become free unseen."""
    config = config_of(["--config=tiny.yaml", *FEDPROX])
    assert changed_settings(config, copy.deepcopy(config)) == {}
    free, refusals = set(), set()
    for place in places(parser_of("fit"), config):
        value, name = at(config, place), named(place)
        another = [] if place == ("trainer", "callbacks") else {"class_path": OTHER} if is_class(value) else OTHER
        found = changed_settings(config, put(config, place, another))
        (refusals if found else free).add(name)
        if found:
            key = "trainer.callbacks" if name.startswith("trainer.callbacks") else name
            assert all(each.startswith(key) for each in found), f"changing {name} is told as {found}"
            before, now = found[key]
            assert before != now
            is_later = before is None  # left out of the settings at its default, as runs of earlier versions have it
            assert isinstance(value, dict | list) or key == "trainer.callbacks" or is_later or before == value
    assert len(refusals) > 50
    assert free == FREE


def changed_rules(before: list[Any], now: list[Any]) -> Any:
    """How the rules of two runs differ; each is a class, or a class and its arguments."""
    configs = []
    for rules in (before, now):
        pairs = [each if isinstance(each, tuple) else (each, {}) for each in rules]
        callbacks = [{"class_path": name, "init_args": arguments} for name, arguments in pairs]
        configs.append({"trainer": {"callbacks": callbacks or None}})
    return changed_settings(*configs).get("trainer.callbacks")


def test_rules_are_compared_in_their_order_with_their_arguments() -> None:
    nova, gh, prox = (f"fl_lightning.callbacks.{name}" for name in ("FedNova", "GradientHarmonization", "FedProx"))
    weak, strong = (prox, {"mu": 0.1}), (prox, {"mu": 0.2})
    assert changed_rules([], [weak]) == [None, "FedProx(mu=0.1)"]
    assert changed_rules([weak], []) == ["FedProx(mu=0.1)", None]
    assert changed_rules([weak], [strong]) == ["FedProx(mu=0.1)", "FedProx(mu=0.2)"]
    assert changed_rules([nova, gh], [gh, nova]) == [
        "FedNova + GradientHarmonization",
        "GradientHarmonization + FedNova",
    ]
    assert changed_rules([nova], [nova]) is None


@pytest.mark.parametrize(
    ("home", "free", "refused"),
    [
        ("fl_lightning.callbacks", ["ConflictMonitor"], ["Krum"]),
        ("lightning.pytorch.callbacks", ["LearningRateMonitor", "RichProgressBar"], ["EMAWeightAveraging"]),
        ("own", [], ["Anneals", "Own"]),
    ],
)
def test_a_callback_that_may_change_a_round_is_refused(home: str, free: list[str], refused: list[str]) -> None:
    """A plain callback may do anything; a monitor changes nothing."""
    Path("own.py").write_text(
        "from lightning.pytorch import Callback\nfrom fl_lightning import FederatedCallback\n\n\n"
        "class Anneals(Callback):\n    def __init__(self, rate: float = 0.1) -> None: ...\n\n\n"
        "class Own(FederatedCallback): ...\n"
    )
    with restored():
        assert [name for name in [*free, *refused] if changed_rules([], [f"{home}.{name}"]) is None] == free


def test_the_first_of_two_plain_callbacks_of_a_class_counts() -> None:
    first, second = (("own.Anneals", {"rate": rate}) for rate in (0.1, 0.2))
    assert changed_rules([first, first], [first, first]) is None
    assert changed_rules([first, first], [second, first]) is not None


def test_classes_of_one_name_from_two_modules_differ() -> None:
    one, two = ({"model": {"client": {"class_path": f"{module}.Net"}}} for module in ("first", "second"))
    assert changed_settings(one, two) == {"model.client": ["first.Net", "second.Net"]}
    one, two = ([{"class_path": f"{module}.Rule", "init_args": {}}] for module in ("first", "second"))
    assert changed_rules(["first.Rule"], ["second.Rule"]) == [one, two]


def test_a_hidden_word_is_no_change() -> None:
    """config.yaml has *** in its place."""
    one, two = ({"data": {"init_args": {"token": word}}} for word in ("***", "a-secret"))
    assert changed_settings(one, two) == {}


# Real runs


def environment() -> dict[str, Any]:
    return dict(yaml.safe_load((RUN / "environment.yaml").read_text()))


def saved() -> dict[str, Any]:
    return dict(yaml.safe_load((RUN / "config.yaml").read_text()))


def test_a_run_of_the_last_release_goes_on() -> None:
    """Its config.yaml has an option that is gone since, and none that came since."""
    config = saved()
    config["model"]["local_graph"] = False
    del config["model"]["channels_last"]
    (RUN / "config.yaml").write_text(yaml.safe_dump(config))
    fit("--ckpt_path", "last", "--trainer.max_epochs", 3)
    (resumed,) = environment()["resumed"]
    assert "changed" not in resumed


def test_what_is_free_changes_no_bit() -> None:
    """Rounds 3 and 4 with other devices, memory, evaluation, progress, monitors: as if it had not been stopped."""
    fit("--trainer.max_epochs", 4, "--experiment", "whole")
    several = ("--trainer.strategy", "lib.in_forks.InForks", "--trainer.strategy.start_method", "fork")
    fit(
        *("--ckpt_path", "last", "--trainer.max_epochs", 4, "--trainer.devices", 2, *several),
        *("--trainer.check_val_every_n_epoch", 2, "--trainer.limit_val_batches", 1, "--data.eval_batch_size", 7),
        *("--data.clients_per_batch", 2, "--data.num_workers", 1, "--model.cohort_memory", "1KiB"),
        *("--trainer.enable_progress_bar", "false", "--trainer.callbacks+=ConflictMonitor"),
    )
    assert_same(LAST, Path("runs/whole/version_0/checkpoints/last.ckpt"))
    (resumed,) = environment()["resumed"]
    assert resumed["round"] == 3
    assert "changed" not in resumed


def test_what_changes_results_is_refused_and_nothing_is_written() -> None:
    options = ["--data.batch_size", 16, "--model.clients_at_once", 4, "--trainer.callbacks+=FedNova"]
    before = contents()
    message = refused("fit", "--config", "tiny.yaml", *options, "--ckpt_path", "last")
    assert message == (
        f"ckpt_path: {RUN} was trained with other settings: trainer.callbacks (null → FedNova), model.clients_at_once "
        "(1 → 4), data.batch_size (32 → 16): go on with the run's own, start a new run without "
        "ckpt_path, or say --resume_changed true, which records the change"
    )
    assert refused("fit", "--config", "tiny.yaml", *options, "--ckpt_path", LAST, "--experiment", "other") == message
    assert contents() == before


def test_a_change_that_is_allowed_is_recorded_and_told() -> None:
    """Once: going on with the new settings changes nothing; going back to the old ones does."""
    options = ["--config", "tiny.yaml", "--ckpt_path", "last", "--model.client.optimizer.lr"]
    assert run("fit", *options, 0.05, "--trainer.max_epochs", 3, "--resume_changed", "true").status == 0
    assert run("fit", *options, 0.05, "--trainer.max_epochs", 4).status == 0
    refused("fit", *options, 0.1, "--trainer.max_epochs", 5)
    first, second = environment()["resumed"]
    assert first["changed"] == {"model.client.optimizer.lr": [0.1, 0.05]}
    assert (first["round"], second["round"]) == (3, 4)
    assert "changed" not in second
    assert saved()["model"]["client"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.05
    assert "resume_changed" not in saved(), "the next start must ask again"
    told = "FedAvg, seed 1 went on with other settings from round 3: model.client.optimizer.lr (0.1 → 0.05)."
    assert told in run("report", RUN).out.splitlines()
    assert told in (RUN / "report.html").read_text()


def test_other_data_are_refused_or_recorded() -> None:
    """The same settings, and a table that was edited in between; from Python, too, where nothing is refused."""
    write_table(0)
    shutil.rmtree("runs")
    fit(*TABLE, "--trainer.max_epochs", 1)
    known = environment()["data"]
    fit(*TABLE, "--trainer.max_epochs", 2, "--ckpt_path", "last")
    write_table(1)
    before = contents()
    again = ("fit", "--config", "tiny.yaml", *TABLE, "--trainer.max_epochs", 3, "--ckpt_path", "last")
    message = refused(*again)
    assert message.startswith(f"ckpt_path: {RUN} was trained with other settings: data_fingerprint ({known} → ")
    assert contents() == before
    assert run(*again, "--resume_changed", "true").status == 0
    assert environment()["resumed"][-1]["changed"] == {"data_fingerprint": [known, environment()["data"]]}


TABLE = (
    "--data=Table",
    "--data.batch_size=32",
    "--data.train=my.csv",
    "--data.target=y",
    "--model.client.network.in_features=2",
)


def write_table(seed: int) -> None:
    """Forty rows of four clients, with two features and a class."""
    draws = np.random.default_rng(seed).normal(size=(40, 2))
    lines = [f"{at % 4},{a:.4f},{b:.4f},{at % 3}" for at, (a, b) in enumerate(draws)]
    Path("my.csv").write_text("\n".join(["client,a,b,y", *lines, ""]))


@pytest.mark.slow
@pytest.mark.parametrize("other", [["--seed_everything", 2], []], ids=["settings", "data"])
def test_several_devices_refuse_without_a_traceback(other: list[Any]) -> None:
    write_table(0)
    options = ("fit", "--config", "tiny.yaml", *TABLE, "--trainer.devices", 2)
    shutil.rmtree("runs")
    assert process(*options, "--trainer.max_epochs", 1).returncode == 0
    write_table(0 if other else 1)
    before = contents()
    done = process(*options, "--ckpt_path", "last", *other)
    lines = {line for line in done.stderr.splitlines() if line.startswith("fl-lightning: error: ")}
    assert done.returncode == 2
    assert len(lines) == 1, "each rank finds the same"
    assert f"{RUN} was trained with other settings" in lines.pop()
    assert "Traceback" not in done.stderr
    assert contents() == before


def test_what_is_equal_and_written_differently_is_free() -> None:
    """A whole number for a float, a class by its longer path, and without an argument that came later."""
    config = saved()
    config["model"]["local_lr_decay"] = 1
    config["data"]["class_path"] = "fl_lightning.datamodules.images.digits.Digits"
    del config["model"]["on_bad_update"], config["data"]["init_args"]["drop_last"], config["trainer"]["plugins"]
    (RUN / "config.yaml").write_text(yaml.safe_dump(config))
    fit("--ckpt_path", "last", "--trainer.max_epochs", 3)
    assert [row["round"] for row in rows(RUN / "metrics.csv")] == [1, 2, 3]


def test_a_class_that_is_gone_is_refused_by_its_name() -> None:
    """Nothing can tell whether it is the class that has a new name."""
    config = saved()
    config["model"]["client"]["init_args"]["network"]["class_path"] = "gone.TwoNN"
    (RUN / "config.yaml").write_text(yaml.safe_dump(config))
    message = refused("fit", "--config", "tiny.yaml", "--ckpt_path", "last")
    assert "settings: model.client.network (gone.TwoNN → fl_lightning.models.mlp.TwoNN): go on" in message


def test_a_checkpoint_without_a_config_beside_it_begins_a_run_folder() -> None:
    """There is no record that could become untrue."""
    before = contents(RUN)
    Path("copy.ckpt").write_bytes(LAST.read_bytes())
    fit("--ckpt_path", "copy.ckpt", "--model.client.optimizer.lr", 0.05, "--trainer.max_epochs", 3)
    assert contents(RUN) == before
    known = yaml.safe_load(Path("runs/tiny/version_1/environment.yaml").read_text())
    assert [each["round"] for each in known["resumed"]] == [3]
