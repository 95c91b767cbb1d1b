"""``fl-lightning data``: what a run would see, shown without training."""

import io
from pathlib import Path

import pytest
import torch
from lib.command import refused, run
from PIL import Image
from rich.console import Console
from torch.utils.data import TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.datamodules import ClassesPerClient, Digits
from fl_lightning.fit import overview


class Skewed(FederatedDataModule):
    """Client k holds 10 k examples; nothing is known of classes."""

    num_clients = 4

    def client_dataset(self, client: int) -> TensorDataset:
        return TensorDataset(torch.zeros(10 * client, 1))


def shown(data: FederatedDataModule, plot: Path) -> str:
    console = Console(width=120, file=io.StringIO())
    overview.show(data, plot, console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]  # it is the StringIO


def cells(text: str) -> list[list[str]]:
    """The table's rows."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]


def test_data_without_classes(tmp_path: Path) -> None:
    """Clients of 0, 10, 20, 30 examples at batches of 8: 60 in all, median of the three with data 20; 2 to 4 steps."""
    plot = tmp_path / "plot.png"
    text = shown(Skewed(batch_size=8), plot)
    assert cells(text) == [["0", "0"], ["1", "10"], ["2", "20"], ["3", "30"]]
    assert "60 training examples; 3 of 4 clients hold some" in text
    assert "10 to 30, median 20" in text
    assert "clients per round: 3; local steps per epoch: 2 to 4" in text
    assert "class" not in text
    assert not plot.exists()


def test_names_stand_beside_the_numbers(tmp_path: Path) -> None:
    """As they are: brackets are no markup."""
    text = shown(Skewed(batch_size=8, client_names=["oslo", "rome", "[bold]bern[/]", "lyon"]), tmp_path / "plot.png")
    names = ["oslo", "rome", "[bold]bern[/]", "lyon"]
    assert cells(text) == [[str(k), name, str(10 * k)] for k, name in enumerate(names)]


def test_counts_of_each_class(tmp_path: Path) -> None:
    """Ten clients of one class each hold what there is of it."""
    data = Digits(num_clients=10, partition=ClassesPerClient(1))
    counts = data.class_counts()
    text = shown(data, tmp_path / "plot.png")
    assert [[row[0], row[1], row[2]] for row in cells(text)] == [
        [str(k), str(int(counts[k].sum())), "1"] for k in range(10)
    ]
    assert all(row[3] == f"{int(counts[k].argmax())} (100%)" for k, row in enumerate(cells(text)))
    assert "classes per client with data: 1 to 1 of 10, mean 1.0" in text
    assert "examples per class: " + " ".join(str(n) for n in counts.sum(0).tolist()) in text


def test_many_clients_are_cut_short(tmp_path: Path) -> None:
    text = shown(Digits(num_clients=300), tmp_path / "plot.png")
    assert "300 clients, the first 30" in text
    assert len(cells(text)) == 30
    assert "1,442 training examples; 300 of 300 clients hold some" in text


def test_the_command() -> None:
    """It takes a config and its overrides as ``fit`` does, writes the plot, and trains nothing."""
    result = run("data", "--config", "tiny.yaml", "--data.num_clients", 6, "--plot", "plots/six.png")
    assert (result.status, result.err) == (0, "")
    assert len(cells(result.out)) == 6
    with Image.open("plots/six.png") as image:
        assert image.format == "PNG"
        assert len(image.convert("L").getcolors()) > 2
    assert not Path("runs").exists()


def test_no_model_is_needed() -> None:
    """Neither on the command line nor in a config; a model that is given is still looked at."""
    Path("stays.csv").write_text("hospital,age,stay\nrome,40,0\noslo,50,1\nrome,60,1\n")
    Path("data.yaml").write_text("data: {class_path: Digits, init_args: {num_clients: 5}}")
    table = ["--data", "Table", "--data.train", "stays.csv", "--data.client", "hospital", "--data.target", "stay"]
    result = run("data", *table)
    assert (result.status, result.err) == (0, "")
    assert [row[:3] for row in cells(result.out)] == [["0", "oslo", "1"], ["1", "rome", "2"]]
    assert len(cells(run("data", "--config", "data.yaml").out)) == 5
    wrong = run("data", *table, "--model.client", "ImageClassifer")
    assert wrong.status == 2
    assert "ImageClassifer" in wrong.err
    assert run("fit", *table).status == 2


def test_the_plot_belongs_to_the_experiment() -> None:
    """By default; no version of the experiment is taken."""
    result = run("data", "--config", "tiny.yaml")
    assert (result.status, result.err) == (0, "")
    assert result.out.endswith("plot: runs/tiny/partition.png\n")
    assert sorted(map(str, Path().rglob("*"))) == ["runs", "runs/tiny", "runs/tiny/partition.png", "tiny.yaml"]
    moved = run("data", "--config", "tiny.yaml", "--experiment", "mine", "--trainer.default_root_dir", "elsewhere")
    assert moved.out.endswith("plot: elsewhere/mine/partition.png\n")


@pytest.mark.parametrize("plot", ["tiny.yaml/plot.png", "plot.nope"])
def test_a_plot_that_cannot_be_written_is_one_line(plot: str) -> None:
    assert "plot must be a PNG" in refused("data", "--config", "tiny.yaml", "--plot", plot)
