"""Tell runs apart: fingerprints of settings, the chain of rules, settings by dotted names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import ArgumentParser

from fl_lightning.runs.config.earlier import class_at, without_later
from fl_lightning.runs.folder.files import NOT_RECORDED

# Settings that say where and how a run is trained, and do not change its result.
ELSEWHERE = {
    "": ("seed_everything", "experiment", "num_threads", "ckpt_path", NOT_RECORDED),
    "trainer": ("accelerator", "devices", "num_nodes", "strategy", "logger", "default_root_dir", "enable_progress_bar"),
    "data": ("root", "download", "cache", "num_workers", "clients_per_batch", "seed", "client_names"),
    "model": ("seed", "client_states", "cohort_memory", "on_hidden_state"),
}
# Settings that may also change where a run goes on: how long it trains, and what it evaluates, tells and saves.
RESUMABLE = (
    "weights_only",
    "data.eval_batch_size",
    *("trainer.max_epochs", "trainer.min_epochs", "trainer.max_steps", "trainer.min_steps", "trainer.max_time"),
    *("trainer.limit_val_batches", "trainer.limit_test_batches", "trainer.limit_predict_batches"),
    *("trainer.check_val_every_n_epoch", "trainer.num_sanity_val_steps", "trainer.inference_mode"),
    *("trainer.log_every_n_steps", "trainer.enable_autolog_hparams", "trainer.model_registry"),
    *("trainer.enable_checkpointing", "trainer.enable_model_summary", "trainer.profiler", "trainer.detect_anomaly"),
)
SEEDS = {"global": "seed_everything", "model": "model.seed", "data": "data.seed"}
RULES = "rules"
CLASS = ".class"  # ends the name of a setting that is a class
LONGEST_VALUE = 100  # largest number of characters of a value in a message


def settings_fingerprint(config: Mapping[str, Any]) -> str:
    """Hash all settings that affect the result, except the seed, to 16 hexadecimal digits."""
    config = without_later(config, today=False)  # so that the runs of 0.3.0 keep their names
    parts: dict[str, Any] = {"": {key: value for key, value in config.items() if not isinstance(value, dict)}}
    parts |= {key: value for key, value in config.items() if isinstance(value, dict)}
    for part, names in ELSEWHERE.items():
        for holder in (parts[part], parts[part].get("init_args")):
            for name in names:
                if isinstance(holder, dict):
                    holder.pop(name, None)
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def named_settings(config: Mapping[str, Any], rules: Sequence[str]) -> dict[str, Any]:
    """Collect all settings that affect the result, except the seed, by dotted names.

    The entry ``rules`` joins the names of the rules in their order; without any rule, the entry is "FedAvg". The name
    of a rule's argument begins with the rule, as in ``FedProx.mu``. The name of a setting that is a class ends in
    ``.class``.

    Args:
        config: a run's config.
        rules: names of the run's rules, as in environment.yaml.
    """
    names = []
    arguments: dict[str, Any] = {}
    for rule in _chain(without_later(_plain(config), imports=False), rules):
        settings = _flat(rule, "")
        rule_name = short(settings.pop(CLASS))
        names.append(rule_name)
        arguments |= {f"{rule_name}.{name}": value for name, value in settings.items()}
    named = {RULES: " + ".join(names) or "FedAvg", **arguments}
    for name, value in own_settings(config).items():
        named[name] = short(value) if name.endswith(CLASS) else value
    return named


def own_settings(config: Mapping[str, Any], free: Sequence[str] = ()) -> dict[str, Any]:
    """Collect the settings that affect the result, except the seed and the callbacks, by dotted names, classes in full.

    Args:
        config: a run's config.
        free: dotted names of settings to leave out beside those of ``ELSEWHERE``.
    """
    config = without_later(_plain(config), imports=False)
    (config.get("trainer") or {}).pop("callbacks", None)
    flat = _flat(config, "")
    left_out = [f"{part}.{name}".strip(".") for part, names in ELSEWHERE.items() for name in names] + list(free)
    beginnings = tuple(f"{name}." for name in left_out)  # of a setting left out, and of the settings below it
    return {name: value for name, value in flat.items() if not f"{name}.".startswith(beginnings)}


def seed_of(config: Mapping[str, Any]) -> Any:
    """Return a run's seed; if a run from Python has had several, a text with all of them; None without any.

    >>> seed_of({"seed_everything": 1}), seed_of({"seed_everything": 1, "model": {"seed": 1}, "data": {"seed": 0}})
    (1, 'global 1, model 1, data 0')
    """
    flat = _flat({part: config.get(part) for part in ("seed_everything", "model", "data")}, "")
    known = {place: flat.get(name) for place, name in SEEDS.items()}
    seeds = {place: seed for place, seed in known.items() if isinstance(seed, int)}
    if len({*seeds.values()}) > 1:
        return ", ".join(f"{place} {seed}" for place, seed in seeds.items())
    return next(iter(seeds.values()), None)


def changes_text(changed: Mapping[str, Any]) -> str:
    """Write changed settings, each with its values before and now, as text.

    >>> changes_text({"model.local_epochs": [1, None], "data.batch_size": [32, 64]})
    'model.local_epochs (1 → null), data.batch_size (32 → 64)'
    """

    def text(value: Any) -> str:
        words = "null" if value is None else str(value)
        return words if len(words) <= LONGEST_VALUE else f"{words[:LONGEST_VALUE]}…"

    changes = []
    for name, value in changed.items():
        values = value if isinstance(value, list) else [value]
        changes.append(f"{name} ({' → '.join(map(text, values))})")
    return ", ".join(changes)


def method_name(config: Mapping[str, Any], rules: Sequence[str]) -> str:
    """Name a run's method: the rules in their order, each with the arguments that differ from the class's defaults.

    Without any rule, the name is "FedAvg". The name does not depend on the seed or on the other settings.

    Args:
        config: a run's config.
        rules: names of the run's rules, as in environment.yaml.

    >>> method_name({"trainer": {"callbacks": [{"class_path": "mine.FedProx", "init_args": {"mu": 0.1}}]}}, ["FedProx"])
    'FedProx(mu=0.1)'
    """
    return classes_text(_chain(_plain(config), rules)) or "FedAvg"


def rule_arguments(config: Mapping[str, Any], rules: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Collect the arguments of a run's rules by the names of the rules.

    Args:
        config: a run's config.
        rules: names of the run's rules, as in environment.yaml.
    """
    return {short(rule["class_path"]): rule.get("init_args") or {} for rule in _chain(config, rules)}


def classes_text(classes: Sequence[Any]) -> str:
    """Write classes of a config, such as its callbacks, as text, each with the arguments that are no defaults."""
    return " + ".join(map(_value_as_text, classes))


def _value_as_text(value: Any) -> str:
    """Write a value of a config as text; a class with the arguments that differ from the class's defaults."""
    if not isinstance(value, dict) or "class_path" not in value:
        return str(value)
    defaults = _defaults(str(value["class_path"]))
    changed = []
    for name, argument in (value.get("init_args") or {}).items():
        if argument != defaults.get(name, ...):
            changed.append(f"{name}={_value_as_text(argument)}")
    cls = short(value["class_path"])
    return f"{cls}({', '.join(changed)})" if changed else cls


def _defaults(path: str) -> dict[str, Any]:
    """Return a class's default arguments in the form of a config; empty if the class cannot be imported."""
    cls = class_at(path)
    if cls is None:
        return {}
    parser = ArgumentParser()
    try:
        parser.add_class_arguments(cls, fail_untyped=False)
    except ValueError:  # a class whose constructor cannot be read
        return {}
    return dict(_plain(parser.get_defaults().as_dict()))


def _chain(config: Mapping[str, Any], rules: Sequence[str]) -> list[dict[str, Any]]:
    """Select the rules among the callbacks of a config."""
    return [callback for callback in callbacks_in(config) if short(callback["class_path"]) in rules]


def callbacks_in(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the callbacks of a config, each as its ``class_path`` and ``init_args``."""
    callbacks = (config.get("trainer") or {}).get("callbacks") or []
    classes = callbacks if isinstance(callbacks, list) else [callbacks]
    return [callback for callback in classes if isinstance(callback, dict) and "class_path" in callback]


def _plain(value: Any) -> Any:
    """Copy a value, with lists in place of tuples and texts in place of objects."""
    return json.loads(json.dumps(value, default=str))


def _flat(value: Any, name: str) -> dict[str, Any]:
    """Flatten nested settings to dotted names, without jsonargparse's levels ``class_path`` and ``init_args``."""
    if not isinstance(value, dict):
        return {name: value}
    flat: dict[str, Any] = {}
    for key, below in value.items():
        if key == "class_path":
            flat |= _flat(below, name + CLASS)
        elif key == "init_args":
            flat |= _flat(below, name)
        else:
            flat |= _flat(below, f"{name}.{key}".lstrip("."))
    return flat


def short(path: Any) -> str:
    """Return the last part of a dotted name: a class path without module, a setting without the names before."""
    return str(path).rpartition(".")[2]
