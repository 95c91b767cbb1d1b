"""What a run shows: a live display in a terminal, plain lines elsewhere, nothing if so wished."""

import io
import re
from pathlib import Path

import pytest
from command import TINY, fit
from rich.console import Console

import fl_lightning.runs.progress

SPOKEN = r"\d+\.\d\d s/round \(local \d+%, server \d+%(, monitors \d+%)?\)"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


@pytest.fixture
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal, 200 characters wide unless a test asks for another width."""
    text = io.StringIO()
    terminal = Console(file=text, force_terminal=True, width=getattr(request, "param", 200), color_system=None)
    monkeypatch.setattr(fl_lightning.runs.progress, "Console", lambda: terminal)
    return text


def frames(screen: io.StringIO) -> list[str]:
    """The lines that the terminal has shown, without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).replace("\r", "\n").splitlines()


def test_plain_lines_where_nobody_watches() -> None:
    """One a round: the round, the metrics in their order, the time."""
    out = fit("--trainer.callbacks+=ConflictMonitor").out.splitlines()
    number = r"\d+\.\d{4}"
    metrics = rf"val/top1 {number}  conflict/ratio {number}  train/loss {number}"
    assert len(out) == 3
    for round, left, line in zip((1, 2), (r"  \d:\d\d:\d\d left", ""), out[:2], strict=True):
        assert re.fullmatch(rf"round {round}/2  {metrics}  {SPOKEN}{left}", line), line
    assert out[2].startswith("run folder: ")


def test_lines_go_on_with_the_round_that_is_due() -> None:
    fit()
    out = fit("--ckpt_path", "last", "--trainer.max_epochs", 3).out.splitlines()
    assert [line.split("  ")[0] for line in out] == ["round 3/3", "run folder: runs/tiny/version_0"]


def test_without_a_last_round_there_is_no_total() -> None:
    out = fit("--trainer.max_epochs", -1, "--trainer.max_steps", 2).out.splitlines()
    assert [line.split("  ")[0] for line in out[:2]] == ["round 1", "round 2"]


def test_terminal_shows_rounds_clients_and_metrics(screen: io.StringIO) -> None:
    """At the end: 2 of 2 rounds, 4 of 4 clients, and the last round's metrics."""
    result = fit("--trainer.callbacks+=ConflictMonitor")
    assert "round 1/2" not in result.out, "plain lines would break the display"
    shown = frames(screen)
    assert re.search(r"\b2/2 ", [line for line in shown if line.startswith("rounds")][-1])
    metrics = [line for line in shown if line.startswith("val/top1")][-1].rstrip()
    assert re.fullmatch(r"val/top1 0\.\d{4}  conflict/ratio \d\.\d{4}  train/loss \d\.\d{4}  " + SPOKEN, metrics)
    assert re.search(r"\b4/4\b", [line for line in shown if line.startswith("clients")][-1])
    rounds = [line.split()[1:] for line in shown if line.startswith("rounds")]
    assert len(rounds) >= 2


@pytest.mark.parametrize(
    ("screen", "fits"),
    [(50, ["val/top1", "conflict/ratio"]), (80, ["val/top1", "conflict/ratio", "train/loss"])],
    indirect=["screen"],
)
def test_a_narrow_terminal_drops_metrics_but_neither_round_nor_time(screen: io.StringIO, fits: list[str]) -> None:
    fit("--trainer.callbacks+=ConflictMonitor")
    shown = frames(screen)
    rounds = [line for line in shown if line.startswith("rounds")][-1]
    assert re.fullmatch(r"rounds  \S+ +2/2 +\d:\d\d:\d\d \d:\d\d:\d\d *", rounds), rounds
    metrics = [line for line in shown if line.startswith("val/top1")][-1]
    assert metrics.split()[::2] == fits


def test_clients_of_the_terminal_are_the_cohort(screen: io.StringIO) -> None:
    """Two of four clients a round, in one batch: still two."""
    fit("--data.participation", 0.5, "--data.clients_per_batch", 2)
    assert re.search(r"\b2/2\b", [line for line in frames(screen) if line.startswith("clients")][-1])


def test_terminal_is_released_after_a_failure(screen: io.StringIO) -> None:
    """The cursor, hidden while the display lives, is shown again."""
    Path("stops.py").write_text(
        "from lightning.pytorch import Callback\n\n\n"
        "class Stops(Callback):\n"
        "    def on_train_epoch_end(self, trainer, pl_module):\n"
        "        raise ValueError('stop here')\n"
    )
    with pytest.raises(ValueError, match="stop here"):
        fit("--trainer.callbacks+=stops.Stops")
    assert screen.getvalue().rfind("\x1b[?25h") > screen.getvalue().rfind("\x1b[?25l") >= 0


def test_disabled_shows_nothing(screen: io.StringIO) -> None:
    result = fit("--trainer.enable_progress_bar", "false")
    assert (result.out, result.err, screen.getvalue()) == ("", "", "")
