"""The W&B workspace: what its panels show is what runs log."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import wandb
from command import TINY, fit, rows, run

from fl_lightning.report.dashboard import SECTIONS, layout

EVERY = ("--trainer.callbacks.every", 1)
ALL = (
    *("--trainer.callbacks+=FedLAW", "--data.proxy_per_class", 2),
    *("--trainer.callbacks+=ConflictMonitor", "--trainer.callbacks.layers", "true"),
    *("--trainer.callbacks+=ClientMonitor", "--trainer.callbacks+=CoherenceMonitor"),
    *("--trainer.callbacks+=PersonalEvaluation", "--data.held_out", 0.2),
    *("--trainer.callbacks+=HessianMonitor", *EVERY, "--trainer.callbacks.examples", 16),
)
LINE = "Run History Line Plot"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with tiny.yaml, which is the user's home, without a key for W&B."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_PROJECT", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    Path("tiny.yaml").write_text(TINY)


def written(*args: object) -> dict[str, Any]:
    """The layout that ``dashboard --out`` writes."""
    result = run("dashboard", "--out", "layout.json", *args)
    assert result.status == 0, result.err
    assert result.out == "layout: layout.json\n"
    return dict(json.loads(Path("layout.json").read_text())["section"])


def panels(section: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    sections = section["panelBankConfig"]["sections"]
    return [(panel["viewType"], panel["config"]) for held in sections for panel in held["panels"]]


def test_every_metric_of_a_run_has_a_panel_and_every_panel_a_metric() -> None:
    """With all rules and monitors that the sections are for, evaluated by W&B's rules: a name, or a regular expression.

    What is in no section: W&B's axis, and what rules keep for clients, in bytes. Times are not in metrics.csv.
    """
    fit("--trainer.max_epochs", 1, *ALL)
    (row,) = rows(Path("runs/tiny/version_0/metrics.csv"))
    times = {f"time/{part}" for part in ("seconds", "local", "server", "monitors", "rest")}
    logged, shown = row.keys() - {"round", "clients/state_bytes"} | times, set()
    for kind, config in panels(written()):
        if kind == LINE:
            regex = config.get("metricRegex")
            found = {name for name in logged if (re.search(regex, name) if regex else name in config["metrics"])}
            assert found, config["chartTitle"]
            assert regex or found == set(config["metrics"]), config["chartTitle"]
            shown |= found
    assert logged == shown


def test_sections_pictures_and_the_scatter_plot() -> None:
    section = written()
    assert [held["name"] for held in section["panelBankConfig"]["sections"]] == list(SECTIONS)
    pictures = [key for kind, config in panels(section) if kind == "Media Browser" for key in config["mediaKeys"]]
    assert sorted(pictures) == ["conflict/cosines", "data/partition", "surface/loss"]
    (scatter,) = (config for kind, config in panels(section) if kind == "Scatter Plot")
    assert (scatter["xAxis"], scatter["yAxis"]) == ("summary:conflict/ratio", "summary:val/top1")


def test_the_axis_is_the_round_and_seeds_are_bands() -> None:
    section = written()
    assert section["settings"]["xAxis"] == "round"
    for kind, config in panels(section):
        if kind == LINE:
            assert (config["xAxis"], config["groupAgg"], config["groupArea"]) == ("round", "mean", "minmax")
    (runs,) = section["runSets"]
    assert [(key["section"], key["name"]) for key in runs["grouping"]] == [
        ("config", "experiment.value"),
        ("config", "settings.value"),
    ]


def test_entity_project_and_name() -> None:
    made = layout("us", "digits", "Conflict")
    assert (made.entity, made.project, made.name) == ("us", "digits", "Conflict")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("wandb login", "WANDB_API_KEY", "--out FILE")),
        (("--out", "no/such/folder.json"), ("cannot be saved", "no/such/folder.json")),
        (("--out", "layout.json", "--name", "🙂"), ("cannot be saved", "Emojis")),
        (("--projekt", "x"), ("--projekt", "--help")),
    ],
)
def test_what_cannot_be_done_takes_one_line(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = run("dashboard", *arguments)
    assert result.status == 2
    assert result.err.count("\n") == 1
    assert all(word in result.err for word in words), result.err


def test_a_key_that_is_none_takes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B looks at its length before it contacts anybody."""
    monkeypatch.setenv("WANDB_API_KEY", "short")
    result = run("dashboard", "--entity", "us")
    wandb.teardown()  # which forgets the key
    assert result.status == 2
    assert "API key must have 40" in result.err
