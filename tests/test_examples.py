"""The small examples run as a user runs them, and each shows that its module learns."""

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from lightning.pytorch.utilities.seed import isolate_rng

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _no_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back the threads and the random state that examples set for their own process."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    with isolate_rng():
        yield
    torch.set_num_threads(threads)


def run(name: str, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--rounds", str(rounds)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def test_regression(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A stay lasts 6 days or so, the error of a prediction near 0. The worst hospitals are those of a larger error."""
    run("regression", 4, monkeypatch)
    errors, worst = map(numbers, capsys.readouterr().out.splitlines())
    before, after = errors
    assert before > 5
    assert after < 2.5
    assert worst[0] > after


@pytest.mark.slow
def test_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody who has learnt nothing does better than 28 on average, the number of letters."""
    run("text", 4, monkeypatch)
    perplexity, conflict, text = capsys.readouterr().out.splitlines()
    before, after = numbers(perplexity)
    assert before > 25
    assert after < 12
    assert re.fullmatch(r"conflicting pairs of authors in the last round: \d+%", conflict)
    assert re.fullmatch(r"the model writes: [a-z ]*", text)


@pytest.mark.slow
def test_graphs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the graphs react, so that a guess is right in half of them. Harmonization leaves no conflict."""
    run("graphs", 4, monkeypatch)
    accuracy, conflict = capsys.readouterr().out.splitlines()
    before, after = numbers(accuracy)
    assert before < 65
    assert after > 80
    assert conflict.endswith("0% after harmonization")


@pytest.mark.slow
def test_self_supervised(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without training, both probes would see the same features."""
    run("self_supervised", 5, monkeypatch)
    before, after = numbers(capsys.readouterr().out)
    assert after > before + 4


@pytest.mark.slow
@pytest.mark.parametrize(("freeze_a", "travelling", "layers"), [(False, 3722, 9), (True, 2698, 5)])
def test_lora(freeze_a: bool, travelling: int, layers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Adapters and head alone travel and are saved, what is frozen stays the backbone's, the program has it all.

    Each of two blocks has adapters of rank 4 from 64 to 192 and from 64 to 64 features, 4 (64 + 64) = 512 numbers in
    the first matrices and 4 (192 + 64) = 1024 in the second; the head has (64 + 1) 10 = 650. First matrices are saved
    even where they are frozen, since nobody else has them.
    """
    orchestrator = runpy.run_path(str(EXAMPLES / "lora.py"), run_name="lora")["main"](2, tmp_path, freeze_a)
    accuracy, told, _, *conflicts = capsys.readouterr().out.splitlines()
    assert len(conflicts) == layers
    before, halfway, after = numbers(accuracy)
    assert before < 25
    assert after > halfway > before
    assert told == f"numbers that travel: {travelling:,} of 105,290"
    assert len(orchestrator.params) == travelling

    module = orchestrator.client.eval()
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    adapters = {name for name in module.state_dict() if ".lora_" in name}
    assert all(".head." in name or name in adapters for name in trained)
    assert states(tmp_path / "last.ckpt").keys() == {f"client.{name}" for name in trained | adapters}
    backbone, end = states(tmp_path / "backbone.ckpt"), module.state_dict()
    assert len(frozen := end.keys() - trained - adapters) == 30
    assert all(torch.equal(end[name], backbone[name.replace(".base_layer", "")]) for name in frozen)

    images = torch.randn(3, 1, 8, 8)
    program = torch.export.load(tmp_path / "whole.pt2").module()
    torch.testing.assert_close(program(images), module(images))


def test_conflict_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates (1, -1) and (0, 2), product -2: the first gains 2/4 of the second, the second 2/2 of the first.

    Both halves of the picture name three arrows. The page shows the same picture.
    """
    monkeypatch.setattr(sys, "argv", ["conflict_picture.py", "--out", str(tmp_path / "made.svg")])
    names = runpy.run_path(str(EXAMPLES / "conflict_picture.py"), run_name="__main__")
    updates = torch.tensor([[1.0, -1.0], [0.0, 2.0]], dtype=torch.float64)
    assert names["harmonized"](updates).tolist() == [[1, 0], [1, 1]]
    shown = EXAMPLES.parent / "docs" / "figures" / "conflict.svg"
    labels = [re.findall("<!-- (.*?) -->", path.read_text()) for path in (tmp_path / "made.svg", shown)]
    assert labels[0] == labels[1]
    assert [labels[0].count(name) for name in ("client A", "client B", "average")] == [2, 2, 2]


@pytest.mark.slow
def test_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The last lines on the runs have the numbers of their files: FedAvg corrects nothing, harmonization does."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(EXAMPLES / "demo.py"), run_name="__main__")
    out = capsys.readouterr().out
    for folder, method, corrects in (("fedavg", "FedAvg", False), ("fedavg_gh", "FedAvg + GH", True)):
        last = pd.read_csv(f"runs/demo/{folder}/version_0/metrics.csv").iloc[-1]
        before, after = last["conflict/ratio"], last["conflict/ratio_after"]
        assert (after < before / 2) == corrects
        corrected = f" → {100 * after:.1f}% after correction" if corrects else ""
        told = f"{method}: top-1 {100 * last['val/top1']:.2f}%, conflicting pairs of clients {100 * before:.1f}%"
        assert f"\n{told}{corrected}\n" in out


def states(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(checkpoint, weights_only=True)["state_dict"]
    return state
