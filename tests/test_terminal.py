"""The commands in a real terminal, made by tmux: what somebody who watches sees, from Enter to the end."""

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lib.command import HANG, TINY

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")]
HEIGHT = 24


@pytest.fixture
def _tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server of its own, in the working directory ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    Path("tiny.yaml").write_text(TINY)
    yield
    subprocess.run(["tmux", "kill-server"], check=False)


def screens(width: int, *args: str) -> list[list[str]]:
    """The different screens that ``fl-lightning ARGS`` shows, as lines, in a terminal of this width."""
    plain = ["env", "-u", "COLUMNS", "-u", "LINES"]  # in which parallel tests state another size
    command = shlex.join([*plain, str(Path(sys.executable).with_name("fl-lightning")), *args])
    size = ["-x", str(width), "-y", str(HEIGHT)]
    subprocess.run(["tmux", "new-session", "-d", *size, f"{command}; touch ended; sleep {HANG}"], check=True)
    seen: list[str] = []
    deadline, ended = time.monotonic() + HANG, False
    while not ended:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        ended = Path("ended").exists()  # looked up first, so that the last screen is whole
        shown = subprocess.run(["tmux", "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout
        seen += [shown] if shown not in seen else []
    return [screen.splitlines() for screen in seen]


def found(pattern: str, shown: list[list[str]]) -> list[str]:
    return [line for screen in shown for line in screen if re.match(pattern, line)]


@pytest.mark.usefixtures("_tmux")
@pytest.mark.parametrize("width", [80, 170])
def test_a_fit_is_never_silent(width: int) -> None:
    shown = screens(width, "fit", "--config", "tiny.yaml", "--trainer.devices", "1")  # or else a line names the cores
    assert found(r"importing PyTorch and Lightning …", shown)
    assert found(r"loading Digits …", shown)
    assert found(r"rounds 0/2 +━+ -:--:-- left \d:\d\d:\d\d elapsed", shown)
    last = [line for line in shown[-1] if line]
    assert last[0] == "loading Digits …", "the imports are forgotten"
    assert re.match(r"estimate: .* a round, .* for 2 rounds$", last[1])
    assert re.match(r"rounds 2/2 +━+ 0:00:00 left", last[2])
    assert re.match(r"clients 4/4 +━+", last[3])
    times = r"  \d+\.\d\d s/round" if width == 170 else ""  # a long line of times does not fit into 80
    assert re.match(rf"val/top1 0\.\d{{4}}  train/loss \d\.\d{{4}}{times}", last[4])
    assert last[5] == "run folder: runs/tiny/version_0"


@pytest.mark.usefixtures("_tmux")
@pytest.mark.parametrize("width", [80, 170])
def test_a_sweep_shows_its_results_so_far(width: int) -> None:
    shown = screens(width, "sweep", "--config", "tiny.yaml", "--grid", "data.batch_size=16,32", "--seeds", "1")
    assert found(r"planning tiny: 2 cells …", shown)
    assert found(r"runs 0/2 +━+ -:--:-- left \d:\d\d:\d\d elapsed", shown)
    assert found(r"batch_size 16 +0/1 +–  round \d/2: ", shown)
    assert found(r"batch_size 16 +1/1 +0\.\d{4}", shown)
    assert found(r"results: runs/sweep/tiny", shown[-1:])
    assert not found(r"runs \d/2", shown[-1:]), "the results stand in the place of the table"
