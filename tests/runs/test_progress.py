"""What a run shows: a live display in a terminal, plain lines elsewhere, nothing if so wished."""

import io
import re
import time
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from command import TINY, fit, run
from rich.console import Console

import fl_lightning.runs.progress
from fl_lightning.datamodules import Digits, Dirichlet
from fl_lightning.runs.progress import Display, Fitting, duration

# Lets a local step take 60 s of a clock that stands still otherwise.
STEPS = """
import time
from fl_lightning import FederatedCallback


class Steps(FederatedCallback):
    def on_before_client_step(self, run):
        time.perf_counter.seconds += 60
"""
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
    assert len(out) == 6
    assert out[:2] == ["loading Digits …", "training rounds 1 to 2, 4 clients each …"]
    assert re.fullmatch(r"estimate: [\d.]+ s a round, [\d.]+ s for 2 rounds(, without evaluation)?", out[2]), out[2]
    for round, left, line in zip((1, 2), (r"  \d:\d\d:\d\d left", ""), out[3:5], strict=True):
        assert re.fullmatch(rf"round {round}/2  {metrics}  {SPOKEN}{left}", line), line
    assert out[5].startswith("run folder: ")


def slow_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a step take 60 s; the steps of each of the four clients of tiny.yaml in a round, which differ."""
    monkeypatch.setattr(time, "perf_counter", Clock())
    Path("steps.py").write_text(STEPS)
    data = Digits(num_clients=4, partition=Dirichlet(0.1), batch_size=32, seed=1)
    data.setup("fit")
    return [data.num_batches(int(size)) for size in data.sizes]


@pytest.mark.parametrize("together", [1, 2])
def test_the_first_clients_foretell_a_round_and_the_run_by_their_steps(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client or a batch of two: clients of other sizes count by their steps of 60 s."""
    steps = slow_steps(monkeypatch)
    assert len(set(steps)) > 2, steps
    out = fit("--trainer.callbacks+=steps.Steps", "--data.clients_per_batch", together).out.splitlines()
    a_round = 60 * sum(steps)
    words = f"estimate: {duration(a_round)} a round, {duration(2 * a_round)} for 2 rounds, without evaluation"
    assert out[2] == f"{words}; make it shorter by --trainer.max_epochs or --data.train_examples"
    assert sum("estimate" in line for line in out) == 1


def test_a_long_round_has_a_line_for_each_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first three of four clients, each at another tenth, with the steps that are left of two rounds."""
    steps = slow_steps(monkeypatch)
    out = fit("--trainer.callbacks+=steps.Steps").out.splitlines()
    first, second = ([line for line in out if line.startswith(f"round {n}/2  clients")] for n in (1, 2))
    left = [timedelta(minutes=2 * sum(steps) - sum(steps[:done])) for done in (1, 2, 3)]
    assert first == [f"round 1/2  clients {done}/4  {each} left" for done, each in zip((1, 2, 3), left, strict=True)]
    assert [line.split("  ")[1] for line in second] == [f"clients {done}/4" for done in (1, 2, 3)]


def test_options_that_a_run_lacks_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data of one's own have no train_examples; a run of less than ten minutes needs no advice."""
    slow_steps(monkeypatch)
    Path("mine.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\nfrom fl_lightning import FederatedDataModule\n\n\n"
        "class Mine(FederatedDataModule):\n"
        "    num_clients = 2\n\n"
        "    def client_dataset(self, client):\n"
        "        return TensorDataset(torch.zeros(32, 1, 8, 8), torch.zeros(32, dtype=torch.long))\n"
    )
    own = ["--trainer.callbacks+=steps.Steps", "--data", "mine.Mine", "--trainer.limit_val_batches", 0]
    for rounds, advice in ((5, ""), (6, "; make it shorter by --trainer.max_epochs")):
        out = fit(*own, "--trainer.max_epochs", rounds).out
        words = f"estimate: 2 minutes a round, {2 * rounds} minutes for {rounds} rounds, without evaluation{advice}\n"
        assert words in out, out


def test_lines_go_on_with_the_round_that_is_due() -> None:
    fit()
    out = fit("--ckpt_path", "last", "--trainer.max_epochs", 3).out.splitlines()
    assert out[1] == "training rounds 3 to 3, 4 clients each …"
    assert [line.split("  ")[0] for line in out[2:]] == ["round 3/3", "run folder: runs/tiny/version_0"]


def test_without_a_last_round_there_is_no_total() -> None:
    out = fit("--trainer.max_epochs", -1, "--trainer.max_steps", 2).out.splitlines()
    assert out[1] == "training from round 1, 4 clients each …"
    assert re.fullmatch(r"estimate: [\d.]+ s a round(, without evaluation)?", out[2]), out[2]
    assert [line.split("  ")[0] for line in out[3:5]] == ["round 1", "round 2"]


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
    assert len(set(beginning("estimate: ", screen))) == 1
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
    """Three rounds of two batches, of as many steps, 20 s each: 40 s a round.

    Before the first batch ends nothing is known. Then half a round has taken 20 s, so the two and a half that are left
    take 100 s. After the first round the mean of the rounds counts: 80 s, half-way through the second 60 s, …
    """
    monkeypatch.setattr(time, "perf_counter", Clock())
    Path("slow.py").write_text(SLOW)
    alike = ["--data.clients_per_batch", 2, "--data.partition", "IID"]
    fit("--trainer.max_epochs", 3, *alike, "--trainer.callbacks+=slow.Slow")
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
