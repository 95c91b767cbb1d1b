"""An agent of W&B, itself, starts the command of the page's sweep; what the server would tell it is given."""

import queue
import re
import sys
from pathlib import Path

import pytest
import yaml
from lib.wandb_files import wandb_history, without_key

PAGE = Path(__file__).parents[3] / "docs/how-to/search.md"


@pytest.mark.slow
def test_an_agent_starts_a_run_with_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_key(tmp_path, monkeypatch)
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):  # which the agent sets
        monkeypatch.setenv(name, "")
    from wandb.wandb_agent import Agent

    found = re.search(r"# agent\.yaml\n(.*?)```", PAGE.read_text(), re.S)
    assert found
    sweep = yaml.safe_load(found[1])
    settings = {"model.client.optimizer.lr": {"value": 0.25}, "model.local_epochs": {"value": 2}}
    assert settings.keys() == sweep["parameters"].keys()

    agent = Agent(None, queue.Queue(), "s1")
    agent._sweep_command = sweep["command"]
    agent._command_run({"run_id": "r1", "program": sweep["program"], "args": settings})
    assert agent._run_processes["r1"].wait() == 0

    (config,) = Path().rglob("config.yaml")
    model = yaml.safe_load(config.read_text())["model"]
    assert model["client"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.25
    assert model["local_epochs"] == 2
    (file,) = Path().glob("wandb/offline-run-*-r1/run-r1.wandb")
    history = wandb_history(file)
    assert [row["round"] for row in history if "val/top1" in row] == [1, 2, 3, 4, 5, 6]
