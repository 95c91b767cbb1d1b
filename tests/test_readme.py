"""What the README shows runs exactly as printed."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from lib.command import TINY, contents, fit, process, rows, run
from lib.resumed import assert_same

DOCS = Path(__file__).parents[1] / "docs"
README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
OWN = {text.splitlines()[0].removeprefix("# "): text for text in PYTHON if text.startswith("# my_")}
COMMAND = next(text for language, text in BLOCKS if language == "bash" and "+=my_rules" in text)


def block(page: str, name: str) -> str:
    """The Python block of a page that is the file of this name."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return next(text for text in blocks if f"# {name}" in text)


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_two_commands_stand_on_the_first_screen_and_in_the_makefile(command: str) -> None:
    """Under their heading, in the first 40 lines; each names a target of the Makefile."""
    first = README.splitlines()[:40]
    assert "## Two commands" in first
    assert any(line.startswith(f"{command} ") for line in first[first.index("## Two commands") :])
    assert f"\n{command.split()[1]}:" in (Path(__file__).parents[1] / "Makefile").read_text()


def test_an_own_rule_is_short() -> None:
    """At most 15 lines, the comment that names the file and blank lines not counted."""
    ((name, text),) = OWN.items()
    assert name == "my_rules.py"
    assert len([line for line in text.splitlines()[1:] if line.strip()]) <= 15


def test_an_own_rule_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It acts: without it, the run ends elsewhere."""
    monkeypatch.chdir(tmp_path)
    for name, text in OWN.items():
        Path(name).write_text(text)
    arguments = [*shlex.split(COMMAND)[1:], "--trainer.max_epochs", "1"]
    for number, args in enumerate([arguments, [a for a in arguments if "Median" not in a]]):
        result = run(*args, "--experiment", number)
        assert result.status == 0, result.err
    assert len({Path(f"runs/{number}/version_0/metrics.csv").read_text() for number in range(2)}) == 2


def test_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = next(text for text in PYTHON if text not in OWN.values())
    exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})
    printed = re.search(r"tensor\(([\d.]+)", capsys.readouterr().out)
    assert printed
    assert float(printed[1]) < 4  # targets k + Σx, k = 0..7, of variance 5: the squared error starts near 5 + 12


def test_the_guides_measure_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each of the 20 clients a number in every round, their mean, and all of them in a file after the last round."""
    monkeypatch.chdir(tmp_path)
    Path("my_measure.py").write_text(block("how-to/own-measure.md", "my_measure.py"))
    fit("--trainer.callbacks+=my_measure.LonelinessMonitor", "--trainer.max_epochs=2", config="digits_gh.yaml")
    folder = Path("runs/digits_gh/version_0")
    for row in rows(folder / "metrics.csv"):
        lonely = [value for name, value in row.items() if name.startswith("clients/lonely/")]
        assert len(lonely) == 20
        assert row["lonely/mean"] == pytest.approx(sum(lonely) / 20)
        assert all(0 <= value <= 2 for value in lonely)
    assert [file.name for file in (folder / "arrays").glob("lonely*")] == ["lonely_2.npz"]


@pytest.mark.filterwarnings("ignore:.*left out")
def test_the_guides_test_of_a_rule_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block("how-to/test-a-rule.md", "test_my_rule.py"), names)
    names["test_my_rule_copes"]("nan")


def test_the_guides_run_from_python_records_what_the_command_line_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same files, the same metrics by name, the same display; a stopped run goes on there."""
    monkeypatch.chdir(tmp_path)
    exec(text := block("how-to/python.md", "my_run.py"), {})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    Path("tiny.yaml").write_text(TINY)
    fit("--trainer.callbacks", "[FedNova, GradientHarmonization]", "--trainer.max_epochs", 3)
    own, command = Path("runs/my_run/version_0"), Path("runs/tiny/version_0")
    assert {*contents(own)} == {path.replace("tiny", "my_run") for path in contents(command)}
    assert [[*row] for row in rows(own / "metrics.csv")] == [[*row] for row in rows(command / "metrics.csv")]
    before = (own / "metrics.csv").read_text()
    again = text.replace("max_epochs=3", "max_epochs=4").replace('"my_run")', '"my_run", "version_0")')
    again = again.replace("num_clients=4)", f'num_clients=4), ckpt_path="{own}/checkpoints/last.ckpt"')
    exec(again, {})
    assert (own / "metrics.csv").read_text().startswith(before)
    assert [row["round"] for row in rows(own / "metrics.csv")] == [1, 2, 3, 4]


@pytest.mark.slow
def test_the_guides_rule_with_a_state_gives_the_same_bits_on_two_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All four clients take part in each of three rounds, so that from the second on, the state changes the result."""
    monkeypatch.chdir(tmp_path)
    Path("my_rule.py").write_text(block("reference/hooks.md", "my_rule.py"))
    Path("tiny.yaml").write_text(TINY)
    rule = ("--trainer.callbacks", "my_rule.Restraint", "--trainer.max_epochs", 3)
    fit("--experiment", "plain", "--trainer.max_epochs", 3)
    fit("--experiment", "one", *rule)
    two = ("--experiment", "two", *rule, "--model.client_states", "disk", "--trainer.devices", 2)
    result = process("fit", "--config", "tiny.yaml", *two)
    assert result.returncode == 0, result.stderr
    plain, one, several = (Path("runs", name, "version_0") for name in ("plain", "one", "two"))
    assert_same(one / "checkpoints/last.ckpt", several / "checkpoints/last.ckpt")
    losses = zip(*([row["val/loss"] for row in rows(folder / "metrics.csv")] for folder in (plain, one)), strict=True)
    assert [without == with_it for without, with_it in losses] == [True, False, False]
