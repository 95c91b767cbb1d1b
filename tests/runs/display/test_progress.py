"""What a run shows: a live display in a terminal, plain lines elsewhere, nothing if so wished."""

import io
import itertools
import re
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from lib.command import TINY, fit, run
from lib.toy import GivenData, Linear, Quadratic, ToyData, trainer
from lightning.pytorch import Callback
from lightning.pytorch.loggers import WandbLogger
from rich.console import Console
from torch.utils.data import DataLoader

import fl_lightning.runs.display.progress
from fl_lightning import FederatedCallback, FederatedOrchestrator, RunFolder, run_callbacks
from fl_lightning.callbacks import ConflictMonitor, GradientHarmonization
from fl_lightning.runs.display.progress import Display, Fitting, RoundProgress
from fl_lightning.runs.display.timer import RoundTimer
from fl_lightning.runs.loggers.wandb import dashboard_hints

SPOKEN = r"\d+\.\d\d s/round \(local \d+%, server \d+%(, monitors \d+%)?\)"


class Clock:
    """A clock that stands still but for what is added to ``seconds``."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Steps(FederatedCallback):
    """Lets a local step take 60 s of the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_before_client_step(self, run: Any) -> None:
        self.clock.seconds += 60


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal, 200 characters wide."""
    text = io.StringIO()
    terminal = Console(file=text, force_terminal=True, width=200, color_system=None)
    monkeypatch.setattr(fl_lightning.runs.display.progress, "Console", lambda **_: terminal)
    return text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(time, "perf_counter", clock := Clock())
    return clock


def beginning(word: str, screen: io.StringIO) -> list[str]:
    """The lines that the terminal has shown, without control sequences, and that begin with a word."""
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).replace("\r", "\n").splitlines()
    return [line.rstrip() for line in shown if line.startswith(word)]


def clients(*steps: int, **settings: Any) -> GivenData:
    """Clients that take so many steps."""
    return GivenData(torch.zeros(len(steps), 2).double(), samples=steps, steps=steps, **settings)


def train(*callbacks: Any, rounds: int = 2, client: Any = None, data: Any = None) -> Any:
    """Some rounds with the display, by default of two clients with 2 and 3 steps; the Trainer."""
    made = trainer(timer := RoundTimer(), *callbacks, RoundProgress(timer), rounds=rounds, enable_progress_bar=True)
    made.fit(FederatedOrchestrator(client or Linear(2)), datamodule=data or clients(2, 3))
    return made


def test_plain_lines_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded, what is trained, then a line a round: the round, the metrics in their order, the time.

    Jupyter and services that run tests force colours where nothing can be redrawn.
    """
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = fit("--trainer.callbacks+=ConflictMonitor", "--trainer.devices=1").out.splitlines()
    number = r"\d+\.\d{4}"
    metrics = rf"val/top1 {number}  conflict/ratio {number}  train/loss {number}"
    assert len(out) == 6
    assert out[:2] == ["loading Digits …", "training rounds 1 to 2, 4 clients each …"]
    assert re.fullmatch(r"estimate: [\d.]+ s a round, [\d.]+ s for 2 rounds(, without evaluation)?", out[2]), out[2]
    for round, left, line in zip((1, 2), (r"  \d:\d\d:\d\d left", ""), out[3:5], strict=True):
        assert re.fullmatch(rf"round {round}/2  {metrics}  {SPOKEN}{left}", line), line
    assert out[5].startswith("run folder: ")


def test_plain_lines_in_a_cell_of_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ``!`` cell says that it is a terminal, and shows each change of a bar below the one before."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for kernel, is_plain in (("1234", True), (None, False)):
        monkeypatch.delenv("JPY_PARENT_PID", raising=False)
        if kernel:
            monkeypatch.setenv("JPY_PARENT_PID", kernel)
        train()
        out = capsys.readouterr().out
        assert ("\x1b[" not in out, "\r" not in out) == (is_plain, is_plain)
        assert ("training rounds 1 to 2" in out) == is_plain


@pytest.mark.parametrize(
    ("settings", "hints"),
    [
        ({"entity": "team"}, ["fl-lightning dashboard --entity team --project p makes its dashboard"]),
        ({"offline": True}, ["once the run is sent, fl-lightning dashboard --project p makes its dashboard"]),
        ({"entity": "dummy", "disabled": True}, []),
    ],
)
def test_the_command_that_makes_the_dashboard_of_a_wandb_run(settings: dict[str, Any], hints: list[str]) -> None:
    logger: Any = WandbLogger()
    facts = {"project": "p", "entity": "", "offline": False, "disabled": False}
    logger._experiment = SimpleNamespace(**facts | settings)
    for is_first in (True, False):
        shown: Any = SimpleNamespace(is_global_zero=is_first, loggers=[logger])
        assert dashboard_hints(shown) == [f"W&B: {hint}" for hint in hints if is_first]


@pytest.mark.parametrize(("rules", "shown"), [([], "1.0000"), ([GradientHarmonization()], "1.0000 → 0.0000")])
def test_conflict_is_shown_before_and_after_correction(
    rules: list[FederatedCallback], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Updates (1, -1) and (0, 2), product -2, become (1, 0) and (1, 1), product 1: of one pair, one and then none."""
    rows = torch.tensor([[-1.0, 1.0], [0.0, -2.0]]).double()
    train(*rules, ConflictMonitor(), rounds=1, data=GivenData(rows))
    assert f"  conflict/ratio {shown}  " in capsys.readouterr().out.splitlines()[-1]


def test_a_long_round_has_a_line_for_each_tenth(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty clients of 10 or 20 minutes: the first alone foretells a round of 300, every second one has a line."""
    train(Steps(clock), data=clients(*[10] * 10, *[20] * 10))
    out = capsys.readouterr().out.splitlines()
    assert out[1] == (
        "estimate: 5 hours a round, 10 hours for 2 rounds, without evaluation; make it shorter by --trainer.max_epochs"
    )
    assert sum("estimate" in line for line in out) == 1
    lines = {n: [line for line in out if line.startswith(f"round {n}/2  clients")] for n in (1, 2)}
    assert [line.split("  ")[1] for line in lines[1]] == [f"clients {done}/20" for done in range(2, 20, 2)]
    assert len(lines[2]) == 9
    left = [600, *map(minutes, lines[1])]
    assert {before - after for before, after in itertools.pairwise(left)} == {20, 40}, "steps count, not clients"


def minutes(line: str) -> int:
    """The time left that a line ends with."""
    hours, minutes, _ = map(int, line.split("  ")[2].removesuffix(" left").split(":"))
    return 60 * hours + minutes


@pytest.mark.parametrize(("rounds", "advice"), [(2, ""), (3, "; make it shorter by --trainer.max_epochs")])
def test_a_run_of_more_than_ten_minutes_is_told_how_to_be_shorter(
    rounds: int, advice: str, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five minutes a round; data of one's own have no train_examples, which is not named then."""
    train(Steps(clock), rounds=rounds)
    words = f"estimate: 5 minutes a round, {5 * rounds} minutes for {rounds} rounds, without evaluation{advice}\n"
    assert words in capsys.readouterr().out
    data = clients(2, 3)
    data.train_examples = 4  # type: ignore[attr-defined]  # as image data have
    train(Steps(clock), rounds=rounds, data=data)
    assert ("or --data.train_examples" in capsys.readouterr().out) == (rounds == 3)


def test_clients_in_one_batch_foretell_together(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Of three clients with 2, 2 and 4 steps, two end together, whichever they are: a round takes 8 minutes."""
    train(Steps(clock), data=clients(2, 2, 4, clients_per_batch=2), rounds=1)
    assert "estimate: 8 minutes a round, without evaluation\n" in capsys.readouterr().out


def test_lines_go_on_with_the_round_that_is_due(capsys: pytest.CaptureFixture[str]) -> None:
    made = train()
    capsys.readouterr()
    made.fit_loop.max_epochs = 3
    made.fit(made.lightning_module, datamodule=made.datamodule)
    out = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in out] == ["training rounds 3 to 3, 2 clients each …", "round 3/3"]


def test_a_run_from_python_names_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """At the end of each fit, that of a finished run, too; in a display that is off, nothing."""
    logger = RunFolder("runs", "mine")
    callbacks = [*run_callbacks(checkpoints=False)]
    made = trainer(*callbacks, rounds=1, enable_progress_bar=True, logger=[logger])
    for _ in range(2):
        made.fit(FederatedOrchestrator(Linear(2)), datamodule=clients(2, 3))
        assert capsys.readouterr().out.splitlines()[-1] == "run folder: runs/mine/version_0"
    assert sorted(path.name for path in Path("runs/mine").iterdir()) == ["version_0"]
    trainer(*run_callbacks(checkpoints=False, progress=False), rounds=1, logger=[RunFolder("runs", "off")]).fit(
        FederatedOrchestrator(Linear(2)), datamodule=clients(2, 3)
    )
    assert capsys.readouterr().out == ""


def test_without_a_last_round_there_is_no_total(capsys: pytest.CaptureFixture[str]) -> None:
    timer = RoundTimer()
    made = trainer(timer, RoundProgress(timer), rounds=-1, max_steps=2, enable_progress_bar=True)
    made.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "training from round 1, 2 clients each …"
    assert re.fullmatch(r"estimate: [\d.]+ s a round(, without evaluation)?", out[1]), out[1]
    assert [line.split("  ")[0] for line in out[2:]] == ["round 1", "round 2"]


def test_the_data_are_named_before_they_are_loaded() -> None:
    """Loading may take minutes, in a download."""
    Path("mine.py").write_text(
        "from fl_lightning.datamodules import Digits\n\n\n"
        "class Mine(Digits):\n"
        "    def load(self, train):\n"
        "        print('reading')\n"
        "        return super().load(train)\n"
    )
    out = fit("--data", "mine.Mine", "--trainer.max_epochs", 1).out
    assert out.splitlines()[:2] == ["loading Mine …", "reading"]


class Validated(Quadratic):
    """Logs four metrics, of which it marks the last, or none, for the progress bar."""

    def __init__(self, marked: bool) -> None:
        super().__init__()
        self.marked = marked

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        for name in "abcd":
            self.log(f"val/{name}", 1.0, prog_bar=name == "d" and self.marked)


class WithValidation(ToyData):
    def val_dataloader(self) -> Any:
        return DataLoader(torch.zeros(1))  # type: ignore[arg-type]  # a tensor is a dataset


@pytest.mark.parametrize("marked", [False, True])
def test_validation_metrics_of_a_module_that_marks_none_are_shown(
    marked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first three; a module that marks metrics for the progress bar has chosen."""
    train(client=Validated(marked), data=WithValidation())
    last = capsys.readouterr().out.splitlines()[-1]
    shown = [word for word in last.split() if word.startswith(("val/", "train/"))]
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
    assert len(set(beginning("estimate: ", screen))) == 1
    assert "rounds 2/2" in beginning("rounds", screen)[-1]
    assert "clients 4/4" in beginning("clients", screen)[-1]
    metrics = r"val/top1 0\.\d{4}  conflict/ratio \d\.\d{4}  train/loss \d\.\d{4}  "
    assert re.fullmatch(metrics + SPOKEN, beginning("val/top1", screen)[-1])


@pytest.mark.parametrize(
    ("width", "bar", "metrics"),
    [(30, 0, 1), (36, 0, 1), (50, 21, 2), (80, 35, 3), (100, 40, 4), (120, 40, 4), (170, 40, 4)],
)
def test_a_narrow_terminal_drops_fields_but_neither_rounds_nor_time_left(
    width: int, bar: int, metrics: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 50 columns, 15 for the rounds, 12 for the time left and two gaps leave 21.

    Of 80 columns, 16 more go to the elapsed time: 35 are left.
    """
    texts = ["val/top1 0.8676", "conflict/ratio 0.6000", "train/loss 0.3176", "0.70 s/round (local 76%, server 9%)"]
    terminal = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(fl_lightning.runs.display.progress, "Console", lambda **_: terminal)
    display = Display()
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


class Slow(Callback):
    """Adds 20 s to the clock in each batch, after the terminal has shown the state before.

    That takes two frames, because the first one may have been under way.
    """

    def __init__(self, clock: Clock, screen: io.StringIO) -> None:
        self.clock, self.screen = clock, screen

    def on_train_batch_start(self, *_: Any) -> None:
        for _ in range(2):
            drawn, deadline = self.screen.tell(), time.monotonic() + 60
            while self.screen.tell() == drawn and time.monotonic() < deadline:
                time.sleep(0.01)
        self.clock.seconds += 20


def test_rounds_that_take_long_have_a_time_left(screen: io.StringIO, clock: Clock) -> None:
    """Three rounds of two clients, of as many steps, 20 s each: 40 s a round.

    Before the first client ends nothing is known. Then half a round has taken 20 s, so the two and a half that are left
    take 100 s. After the first round the mean of the rounds counts: 80 s, half-way through the second 60 s, …
    """
    train(Slow(clock, screen), rounds=3, data=clients(1, 1))
    shown = [re.search(r"(\S+) left", line)[1] for line in beginning("rounds", screen)]  # type: ignore[index]  # each has
    times = ["-:--:--", *(str(timedelta(seconds=left)) for left in (100, 80, 60, 40, 20, 0))]
    assert list(dict.fromkeys(shown)) == times


def test_clients_of_the_terminal_are_the_cohort(screen: io.StringIO) -> None:
    """Two of four clients a round, in one batch: still two."""
    train(data=clients(1, 1, 1, 1, participation=0.5, clients_per_batch=2))
    assert "clients 2/2" in beginning("clients", screen)[-1]


class Stops(Callback):
    def on_train_epoch_end(self, *_: Any) -> None:
        raise ValueError("stop here")


def test_terminal_is_released_after_a_failure(screen: io.StringIO) -> None:
    """The cursor, hidden while the display lives, is shown again."""
    with pytest.raises(ValueError, match="stop here"):
        train(Stops())
    assert screen.getvalue().rfind("\x1b[?25h") > screen.getvalue().rfind("\x1b[?25l") >= 0


def test_disabled_shows_nothing(screen: io.StringIO) -> None:
    result = fit("--trainer.enable_progress_bar", "false", "--trainer.max_epochs", 1)
    assert (result.out, result.err, screen.getvalue()) == ("", "", "")
