"""--model.init_from on the command line: another run by its folder, and what config.yaml keeps."""

from pathlib import Path

import pytest
import torch
import yaml
from lib.command import fit, fit_on, run

FIRST, SECOND = (Path("runs", name, "version_0") for name in ("tiny", "second"))


pytestmark = pytest.mark.usefixtures("last")


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(checkpoint)["state_dict"])


def equal(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_another_run_by_its_folder_is_its_best_checkpoint_or_else_its_last() -> None:
    """Clients that stand still (lr 0): the second run ends where it began."""
    still = ("--model.client.optimizer.lr", 0, "--trainer.max_epochs", 1, "--experiment", "second")
    fit(*still, "--model.init_from", FIRST)
    assert equal(SECOND / "checkpoints/last.ckpt", FIRST / "checkpoints/best.ckpt")
    assert yaml.safe_load((SECOND / "config.yaml").read_text())["model"]["init_from"] == str(FIRST)

    (FIRST / "checkpoints/best.ckpt").unlink()
    fit(config=str(SECOND / "config.yaml"))  # the run again from its own config
    assert equal(SECOND.with_name("version_1") / "checkpoints/last.ckpt", FIRST / "checkpoints/last.ckpt")


def test_two_devices_start_from_the_same_file() -> None:
    for devices in (1, 2):
        fit_on(devices, "--experiment", f"on{devices}", "--trainer.max_epochs", 1, "--model.init_from", FIRST)
    one, two = (Path("runs", f"on{devices}", "version_0/checkpoints/last.ckpt") for devices in (1, 2))
    assert equal(one, two)
    assert not equal(one, FIRST / "checkpoints/last.ckpt")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "nowhere.ckpt",
            "init_from: expected a file of weights, a folder of an adapter, or timm: and a name",
        ),
        (".", ". is a folder without checkpoints/best.ckpt and last.ckpt: expected a checkpoint, or a run folder"),
        ("other.pt", "init_from: other.pt does not fit ImageClassifier: network.1.weight is missing, a is unexpected"),
    ],
)
def test_mistakes_take_one_line_before_the_first_round(source: str, message: str) -> None:
    torch.save({"a": torch.ones(1)}, "other.pt")
    result = run("fit", "--config", "tiny.yaml", "--model.init_from", source)
    assert result.status == 2
    assert result.err.startswith(f"fl-lightning: error: {message}"), result.err
    assert result.err.count("\n") == 1
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["version_0"]
