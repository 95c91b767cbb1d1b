"""W&B's workspaces and report: what their panels show is what runs log."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import wandb
from lib.command import run
from lib.wandb_files import fit_with_wandb, wandb_config, wandb_history, without_key

from fl_lightning.report.dashboard import SECTIONS, report, workspace

EVERY = ("--trainer.callbacks.every", 1)
ALL = (
    "--trainer.callbacks+=GradientHarmonization",  # else no layer's updates are corrected
    *("--trainer.callbacks+=FedLAW", "--data.proxy_per_class", 2),
    *("--trainer.callbacks+=ConflictMonitor", *EVERY, "--trainer.callbacks.layers", "true"),
    *("--trainer.callbacks+=ClientMonitor", "--trainer.callbacks+=CoherenceMonitor"),
    "--trainer.callbacks+=TrainingEvaluation",
    "--trainer.callbacks+=PersonalEvaluation",
    *("--data.held_out", 0.2, "--data.num_clients", 5, "--data.new_clients", 0.2),
    *("--data.availability", "Availability"),
    *("--trainer.callbacks+=HessianMonitor", *EVERY, "--trainer.callbacks.examples", 16),
    *("--trainer.callbacks+=LossSurface", *EVERY, "--trainer.callbacks.points", 3),
)
WANDB = ("--trainer.logger", "WandbLogger")
SURFACE = {"surface/lowest", "surface/away", "surface/rise"}
OWN = {"_step", "_runtime", "_timestamp", "epoch", "round", "trainer/global_step"}  # no metrics of the run
LINE, BAR, SCATTER, MEDIA = "Run History Line Plot", "Bar Chart", "Scatter Plot", "Media Browser"
COORDINATES, IMPORTANCE, COMPARER = "Parallel Coordinates Plot", "Parameter Importance", "Run Comparer"
VIEWS = ["Federated by method", "Federated by seed"]
Panels = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory which is the user's home, without a key for W&B."""
    without_key(tmp_path, monkeypatch)
    for name in ("WANDB_ENTITY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def written(*args: object) -> dict[str, dict[str, Any]]:
    """The layouts that ``dashboard --out`` writes, by name."""
    result = run("dashboard", "--out", "layout.json", *args)
    assert result.status == 0, result.err
    assert result.out == "layout: layout.json\n"
    return dict(json.loads(Path("layout.json").read_text()))


def sections(view: dict[str, Any]) -> dict[str, Panels]:
    """The panels of a workspace, by section."""
    found = view["section"]["panelBankConfig"]["sections"]
    return {held["name"]: [(panel["viewType"], panel["config"]) for panel in held["panels"]] for held in found}


def kind(view: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [config for held in sections(view).values() for each, config in held if each == name]


@pytest.mark.slow
def test_panels_show_what_a_run_logs() -> None:
    """A round with all rules and monitors that the sections are for, and a test; evaluated by W&B's rules.

    A plot names metrics, or has a regular expression. No panel: what rules keep for clients, in bytes, and numbers of
    the loss surface, which has a picture. Other modules and options log more, which have panels, too.
    """
    fit_with_wandb(*WANDB, "--trainer.max_epochs", 1, *ALL)
    fit_with_wandb(*ALL[:5], *WANDB, "--ckpt_path", "last", command="test")
    files = sorted(Path().glob("wandb/offline-run-*/run-*.wandb"))
    names = {name for file in files for row in wandb_history(file) for name in row}
    pictures = {name.removesuffix(".path") for name in names if name.endswith(".path")}
    metrics = {name for name in names - OWN if name.partition(".")[0] not in pictures}
    for view in written().values():
        shown = set()
        for config in (*kind(view, LINE), *kind(view, BAR)):
            regex = config.get("metricRegex")
            named = {name for name in metrics if regex and re.search(regex, name)} or set(config["metrics"])
            assert named, config["chartTitle"]
            shown |= named
        assert metrics - {"clients/state_bytes", *SURFACE} <= shown
        assert {key for config in kind(view, MEDIA) for key in config["mediaKeys"]} == pictures
    config = wandb_config(files[0])
    (coordinates,) = kind(view, COORDINATES)
    *settings, last = [column["accessor"] for column in coordinates["columns"]]
    assert last == "summary:val/top1"
    keys = [key.removeprefix("config:") for key in settings] + ["experiment.value", "settings.value", "seed.value"]
    for first, value, *rest in (key.split(".") for key in keys):
        found = config[first]
        for part in rest:
            found = found[part]
        assert value == "value"
        assert found is not None, f"{first}: a run without a value would have no line"


def test_the_sections_show_the_metrics_of_their_groups() -> None:
    """By name, or by the beginning of the names of many; the test's last values are bars."""
    shown = sections(written()[VIEWS[0]])
    assert shown["Accuracy"][0][1]["metrics"] == ["val/top1"]
    assert {name for each, config in shown["Test"] for name in config["metrics"]} >= {"test/top1", "test/loss"}
    regexes = [config.get("metricRegex") or "" for each, config in shown["Clients"] if each == LINE]
    assert any(re.search(regex, "clients/loss/3") for regex in regexes if regex)
    (scatter,) = kind(written()[VIEWS[0]], SCATTER)
    assert (scatter["xAxis"], scatter["yAxis"]) == ("summary:conflict/ratio", "summary:val/top1")
    assert [panel for panel, _ in shown["Settings"]] == [COMPARER, COORDINATES, IMPORTANCE]
    assert shown["Settings"][0][1]["diffOnly"] == "split"
    assert shown["Settings"][2][1]["targetKey"] == "val/top1"


def test_seeds_are_bands_of_their_method_or_lines() -> None:
    """Over the rounds, in both workspaces."""
    by_method, by_seed = written().values()
    for view in (by_method, by_seed):
        assert view["section"]["settings"]["xAxis"] == "round"
        assert {config["xAxis"] for config in kind(view, LINE)} == {"round"}
        assert list(sections(view)) == [section.title for section in SECTIONS]
    (grouped,), (single,) = (view["section"]["runSets"] for view in (by_method, by_seed))
    groups = [(key["section"], key["name"]) for key in grouped["grouping"]]
    assert groups == [("config", f"{name}.value") for name in ("experiment", "method", "settings")]
    assert single["grouping"] == []
    for config in kind(by_method, LINE):
        assert (config["groupAgg"], config["groupArea"]) == ("mean", "minmax")
    for config in kind(by_method, BAR):
        assert (config["groupBy"], config["aggregate"]) == ("method.value", True)
    for config in (*kind(by_seed, LINE), *kind(by_seed, BAR)):
        assert not {"groupAgg", "groupArea", "groupBy", "aggregate"} & config.keys()
        assert config["legendTemplate"] == "${config:method}, seed ${config:seed}"


def test_the_report_has_the_panels_of_the_dashboard() -> None:
    """Below each heading a text and the panels by method, settings by seed; at the end accuracy by seed."""
    by_method, by_seed = map(sections, written("--name", "Ours").values())
    made = written("--report", "--name", "Ours")["Ours"]
    blocks = [block for block in made["blocks"] if block["type"] in ("heading", "panel-grid")]
    shown = {}
    for heading, grid in zip(blocks[::2], blocks[1::2], strict=True):
        found = grid["metadata"]["panelBankSectionConfig"]["panels"]
        (runs,) = grid["metadata"]["runSets"]
        grouped = [key["name"] for key in runs["grouping"]] == ["experiment.value", "method.value", "settings.value"]
        shown[heading["children"][0]["text"]] = (grouped, [(panel["viewType"], panel["config"]) for panel in found])
    assert shown.pop("Single seeds") == (False, by_seed["Accuracy"])
    assert shown.pop("Settings") == (False, by_seed["Settings"])
    assert shown == {name: (True, held) for name, held in by_method.items() if name != "Settings"}
    texts = [block["children"][0]["text"] for block in made["blocks"] if block["type"] == "paragraph"]
    assert all(section.text in texts for section in SECTIONS)


def test_no_panels_of_the_report_lie_on_one_another() -> None:
    """A report is 24 columns wide."""
    for block in written("--report")["Federated"]["blocks"]:
        if block["type"] == "panel-grid":
            places = [panel["layout"] for panel in block["metadata"]["panelBankSectionConfig"]["panels"]]
            assert all(0 <= place["x"] <= place["x"] + place["w"] <= 24 for place in places)
            for one, other in combinations(places, 2):
                beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
                assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_entity_project_and_name() -> None:
    made = workspace("us", "digits", "Conflict", by_seed=True)
    assert (made.entity, made.project, made.name) == ("us", "digits", "Conflict by seed")
    shared = report("us", "digits", "Conflict")
    assert (shared.entity, shared.project, shared.title) == ("us", "digits", "Conflict")
    grids: list[Any] = [block for block in shared.blocks if hasattr(block, "runsets")]
    assert {(runs.entity, runs.project) for grid in grids for runs in grid.runsets} == {("us", "digits")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("wandb login", "WANDB_API_KEY", "--out FILE")),
        (("--out", "no/such/folder.json"), ("cannot be saved", "no/such/folder.json")),
        (("--out", "layout.json", "--name", "🙂"), ("cannot be saved", "Emojis")),
        (("--out", "layout.json", "--report", "--name", "x" * 129), ("cannot be saved", "128")),
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
