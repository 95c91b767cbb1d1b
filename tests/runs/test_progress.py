"""What a run shows: a live display in a terminal, plain lines elsewhere, nothing if so wished."""

import io
import re
import time
from pathlib import Path

import pytest
import yaml
from command import TINY, fit, run
from rich.console import Console

import fl_lightning.runs.progress
from fl_lightning.runs.progress import Display, Fitting

SPOKEN = r"\d+\.\d\d s/round \(local \d+%, server \d+%(, monitors \d+%)?\)"
# Stops the clock except for 20 s at the end of each batch, after which it waits until the terminal shows the new state:
# for two frames, because the first one may have been under way.
SLOW = """
import time
from lightning.pytorch import Callback
from fl_lightning.runs import progress


class Slow(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        screen = progress.Console().file
        for _ in range(2):
            drawn, deadline = screen.tell(), time.monotonic() + 60
            while screen.tell() == drawn and time.monotonic() < deadline:
                time.sleep(0.01)
        time.perf_counter.seconds += 20
"""


class Clock:
    """A clock that stands still but for what is added to ``seconds``."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


@pytest.fixture
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal, 200 characters wide unless a test asks for another width."""
    text = io.StringIO()
    terminal = Console(file=text, force_terminal=True, width=getattr(request, "param", 200), color_system=None)
    monkeypatch.setattr(fl_lightning.runs.progress, "Console", lambda **_: terminal)
    return text


def frames(screen: io.StringIO) -> list[str]:
    """The lines that the terminal has shown, without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).replace("\r", "\n").splitlines()


def beginning(word: str, screen: io.StringIO) -> list[str]:
    return [line.rstrip() for line in frames(screen) if line.startswith(word)]


@pytest.mark.parametrize("color", ["", "1"])
def test_plain_lines_where_nobody_watches(color: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded, what is trained, then a line a round: the round, the metrics in their order, the time.

    Jupyter and services that run tests force colours where nothing can be redrawn.
    """
    monkeypatch.setenv("FORCE_COLOR", color)
    out = fit("--trainer.callbacks+=ConflictMonitor").out.splitlines()
    number = r"\d+\.\d{4}"
    metrics = rf"val/top1 {number}  conflict/ratio {number}  train/loss {number}"
    assert len(out) == 5
    assert out[:2] == ["loading Digits …", "training rounds 1 to 2, 4 clients each …"]
    for round, left, line in zip((1, 2), (r"  \d:\d\d:\d\d left", ""), out[2:4], strict=True):
        assert re.fullmatch(rf"round {round}/2  {metrics}  {SPOKEN}{left}", line), line
    assert out[4].startswith("run folder: ")


def test_lines_go_on_with_the_round_that_is_due() -> None:
    fit()
    out = fit("--ckpt_path", "last", "--trainer.max_epochs", 3).out.splitlines()
    assert out[1] == "training rounds 3 to 3, 4 clients each …"
    assert [line.split("  ")[0] for line in out[2:]] == ["round 3/3", "run folder: runs/tiny/version_0"]


def test_without_a_last_round_there_is_no_total() -> None:
    out = fit("--trainer.max_epochs", -1, "--trainer.max_steps", 2).out.splitlines()
    assert out[1] == "training from round 1, 4 clients each …"
    assert [line.split("  ")[0] for line in out[2:4]] == ["round 1", "round 2"]


def test_the_data_are_named_before_they_are_loaded() -> None:
    """Loading may take minutes, in a download."""
    Path("mine.py").write_text(
        "from fl_lightning.datamodules import Digits\n\n\n"
        "class Mine(Digits):\n"
        "    def load(self, train):\n"
        "        print('reading')\n"
        "        return super().load(train)\n"
    )
    assert fit("--data", "mine.Mine").out.splitlines()[:2] == ["loading Mine …", "reading"]


@pytest.mark.parametrize("marked", [False, True])
def test_validation_metrics_of_a_module_that_marks_none_are_shown(marked: bool) -> None:
    """The first three; a module that marks metrics for the progress bar has chosen."""
    Path("mine.py").write_text(
        "from fl_lightning.models import ImageClassifier\n\n\n"
        "class Mine(ImageClassifier):\n"
        "    def validation_step(self, batch, batch_idx):\n"
        "        for name in 'abcd':\n"
        f"            self.log(f'val/{{name}}', 1.0, prog_bar=name == 'd' and {marked})\n"
    )
    out = fit("--model.client", "mine.Mine").out.splitlines()
    shown = [word for word in out[-2].split() if word.startswith(("val/", "train/"))]
    assert shown == (["val/d", "train/loss"] if marked else ["val/a", "val/b", "val/c", "train/loss"])


def test_nothing_is_said_where_a_program_reads() -> None:
    """A printed config is YAML and no more; the table of the clients comes first."""
    assert yaml.safe_load(run("fit", "--config", "tiny.yaml", "--print_config").out)["trainer"]["max_epochs"] == 2
    assert run("data", "--config", "tiny.yaml").out.lstrip().startswith("4 clients")


def test_terminal_shows_rounds_clients_and_metrics(screen: io.StringIO) -> None:
    """From the first round on; at the end: 2 of 2 rounds, 4 of 4 clients, and the last round's metrics."""
    result = fit("--trainer.callbacks+=ConflictMonitor")
    assert "round 1/2" not in result.out, "plain lines would break the display"
    assert "rounds 0/2" in beginning("rounds", screen)[0]
    assert "-:--:-- left" in beginning("rounds", screen)[0]
    assert "rounds 2/2" in beginning("rounds", screen)[-1]
    assert "clients 4/4" in beginning("clients", screen)[-1]
    metrics = r"val/top1 0\.\d{4}  conflict/ratio \d\.\d{4}  train/loss \d\.\d{4}  "
    assert re.fullmatch(metrics + SPOKEN, beginning("val/top1", screen)[-1])


@pytest.mark.parametrize("screen", [80], indirect=True)
def test_eighty_columns_show_round_bar_and_time_left(screen: io.StringIO) -> None:
    """The bar takes what "clients 4/4", "0:00:00 left", "0:00:01 elapsed" and three gaps leave: 39 of 80 columns."""
    fit("--trainer.callbacks+=ConflictMonitor")
    line = beginning("rounds", screen)[-1]
    assert re.fullmatch(r"rounds 2/2  ━{39} 0:00:00 left \d:\d\d:\d\d elapsed", line), line
    assert beginning("val/top1", screen)[-1].split()[::2] == ["val/top1", "conflict/ratio", "train/loss"]


@pytest.mark.parametrize(
    ("width", "bar", "metrics"),
    [(30, 0, 1), (36, 0, 1), (50, 21, 2), (80, 35, 3), (100, 40, 4), (120, 40, 4), (170, 40, 4)],
)
def test_a_narrow_terminal_drops_fields_but_neither_rounds_nor_time_left(width: int, bar: int, metrics: int) -> None:
    """Of 50 columns, 15 for the rounds, 12 for the time left and two gaps leave 21.

    Of 80 columns, 16 more go to the elapsed time: 35 are left.
    """
    texts = ["val/top1 0.8676", "conflict/ratio 0.6000", "train/loss 0.3176", "0.70 s/round (local 76%, server 9%)"]
    terminal = Console(file=io.StringIO(), width=width, color_system=None)
    display = Display(terminal)
    display.add_task("rounds 100/1000", total=1, completed=1, left=lambda: 7200.0, elapsed=lambda: 900.0)
    display.add_task("clients 1/4", total=4, completed=1)
    display.below = Fitting(texts)
    with terminal.capture() as captured:
        terminal.print(display.get_renderable())
    rounds, clients, below = (line.rstrip() for line in captured.get().splitlines())
    fields = ["rounds 100/1000", "━" * bar, "2:00:00 left", "0:15:00 elapsed" if width > 50 else ""]
    assert rounds == " ".join(field for field in fields if field)
    assert re.fullmatch(r"clients 1/4( +[━╸]+)?", clients), "a task without times"
    assert below == "  ".join(texts[:metrics])


def test_rounds_that_take_long_have_a_time_left(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of two batches, 20 s each: 40 s a round.

    Before the first batch ends nothing is known. Then half a round has taken 20 s, so the two and a half that are left
    take 100 s. After the first round the mean of the rounds counts: 80 s, half-way through the second 60 s, …
    """
    monkeypatch.setattr(time, "perf_counter", Clock())
    Path("slow.py").write_text(SLOW)
    fit("--trainer.max_epochs", 3, "--data.clients_per_batch", 2, "--trainer.callbacks+=slow.Slow")
    shown = [re.search(r"(\S+) left", line)[1] for line in beginning("rounds", screen)]  # type: ignore[index]  # each has
    times = ["-:--:--", "0:01:40", "0:01:20", "0:01:00", "0:00:40", "0:00:20", "0:00:00"]
    assert list(dict.fromkeys(shown)) == times


def test_clients_of_the_terminal_are_the_cohort(screen: io.StringIO) -> None:
    """Two of four clients a round, in one batch: still two."""
    fit("--data.participation", 0.5, "--data.clients_per_batch", 2)
    assert "clients 2/2" in beginning("clients", screen)[-1]


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
