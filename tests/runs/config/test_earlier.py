"""Configs of earlier versions beside those of today: which arguments make no difference, and which are gone."""

import copy
from pathlib import Path
from typing import Any

import pytest

from fl_lightning import ConfigurationError, FederatedCallback
from fl_lightning.later import later
from fl_lightning.runs.config.earlier import bring_up_to_date, check_gone, class_at, without_later
from fl_lightning.runs.config.settings import named_settings, settings_fingerprint

HERE = f"{__name__}."


class Shift:
    """A part of a rule."""

    @later(angle=0.0)
    def __init__(self, centre: int, angle: float = 0.0) -> None: ...


class Rule(FederatedCallback):
    """A user's rule, which takes a list of parts."""

    @later(power=1.0, targets=("q", "v"))
    def __init__(
        self, mu: float, parts: list[Shift] | None = None, power: float = 1.0, targets: tuple[str, ...] = ("q", "v")
    ) -> None: ...


def config(part: dict[str, Any], rule: dict[str, Any], model: dict[str, Any] | None = None) -> dict[str, Any]:
    shift = {"class_path": f"{HERE}Shift", "init_args": {"centre": 3, **part}}
    own = {"class_path": f"{HERE}Rule", "init_args": {"mu": 0.1, "parts": [shift], **rule}}
    model = {"local_epochs": 1, **(model or {})}
    return {"seed_everything": 1, "trainer": {"callbacks": [own]}, "model": model, "data": {}}


BEFORE = config({}, {})
SAME = config({"angle": 0.0}, {"power": 1.0, "targets": ["q", "v"]}, {"local_graph": False})


def test_arguments_that_do_as_before_make_no_difference() -> None:
    """Wherever the class stands: among the callbacks, in a list of a rule; in reports, too."""
    assert without_later(SAME) == without_later(BEFORE) == BEFORE
    assert settings_fingerprint(SAME) == settings_fingerprint(BEFORE)
    assert named_settings(SAME, ["Rule"]) == named_settings(BEFORE, ["Rule"])


@pytest.mark.parametrize("other", [config({"angle": 9.0}, {}), config({}, {"power": 2.0}), config({}, {"targets": []})])
def test_any_other_value_makes_another_run(other: dict[str, Any]) -> None:
    assert settings_fingerprint(other) != settings_fingerprint(BEFORE)
    assert named_settings(other, ["Rule"]) != named_settings(BEFORE, ["Rule"])


def test_the_config_that_is_compared_stays_as_it_is() -> None:
    before = copy.deepcopy(SAME)
    without_later(SAME)
    assert before == SAME


def test_arguments_that_are_gone_are_taken_out_and_refused_unless_they_were_the_default() -> None:
    momentum = {"class_path": "fl_lightning.callbacks.FedAvgM", "init_args": {"momentum": 0.5, "convention": "ema"}}
    run = {"trainer": {"callbacks": [momentum]}, "model": {"local_graph": False}}
    taken = bring_up_to_date(run)
    assert momentum["init_args"] == {"momentum": 0.5}
    assert run["model"] == {}
    assert {(gone.option, value) for gone, value in taken} == {
        ("model.local_graph", False),
        ("FedAvgM.convention", "ema"),
    }
    check_gone("config.yaml", [(gone, value) for gone, value in taken if value != "ema"])
    with pytest.raises(ConfigurationError, match=r"^config\.yaml: FedAvgM\.convention is ema there, and gone: "):
        check_gone("config.yaml", taken)


def test_a_value_that_is_gone_counts_as_what_does_the_same_today() -> None:
    """Up to 0.3.0, compile_clients was "auto" unless it was given."""
    run, today = config({}, {}, {"compile_clients": "auto"}), config({}, {}, {"compile_clients": False})
    assert settings_fingerprint(run) == settings_fingerprint(today)
    assert named_settings(run, ["Rule"]) == named_settings(today, ["Rule"])
    assert bring_up_to_date(run) == []
    assert run == today


def test_an_argument_of_that_name_of_another_class_stays() -> None:
    own = {"class_path": "mine.FedAvgM", "init_args": {"convention": "heavy ball"}}
    assert bring_up_to_date({"trainer": {"callbacks": own}, "data": {"init_args": {"local_graph": False}}}) == []


@pytest.mark.parametrize(("written", "today"), [({}, {"control": "paper"}), ({"control": None}, {"control": None})])
def test_a_rule_that_got_another_default_does_as_before(written: dict[str, Any], today: dict[str, Any]) -> None:
    """FedGAMCV had the paper's control variates up to 0.2.0, and has those of its variant since 0.3.0."""
    rule = {"class_path": "fl_lightning.callbacks.FedGAMCV", "init_args": written}
    bring_up_to_date({"trainer": {"callbacks": [rule]}})
    assert rule["init_args"] == today


@pytest.mark.parametrize("path", ["NotThere", "fl_lightning.callbacks.NotThere", "not_there.Rule", "os.getcwd", None])
def test_no_class(path: str | None) -> None:
    assert class_at(path) is None


def test_a_class() -> None:
    assert class_at("pathlib.Path") is Path
