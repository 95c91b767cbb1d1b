"""Pictures of run folders: curves of a table, a figure of a paper, surfaces, partitions."""

import base64
import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import run
from generated import write_images
from job_folders import finished
from PIL import Image

from fl_lightning.datamodules import CIFAR10
from fl_lightning.reproduce.experiment import Cell, Experiment
from fl_lightning.reproduce.jobs import Job
from fl_lightning.reproduce.papers import find
from fl_lightning.reproduce.pictures import picture

MINE = Experiment("mine", "Mine", "", "", (), "", ("top1",))


class TestPicture:
    def test_a_table_gets_curves(self, tmp_path: Path) -> None:
        """A line a method, in panels by what else there is more than one of."""
        labels = [{"alpha": a, "method": m, "gamma": 1} for a in (0.1, 1) for m in "AB"]
        pairs = [(Cell(each, ()), finished(tmp_path / str(n), top1=[0.1, 0.2])) for n, each in enumerate(labels)]
        path = picture(MINE, pairs, tmp_path)
        assert path == tmp_path / "curves.png"
        assert sorted(each.suffix for each in tmp_path.glob("curves.*")) == [".csv", ".pdf", ".png", ".svg"]
        assert Image.open(path).width == pytest.approx(6.75 * 150, abs=1)  # both columns of a paper, for the screen
        table = pd.read_csv(tmp_path / "curves.csv")
        assert table[["panel", "method"]].drop_duplicates().to_numpy().tolist() == [
            ["alpha 0.1", "A"],
            ["alpha 0.1", "B"],
            ["alpha 1", "A"],
            ["alpha 1", "B"],
        ]

    def test_chains_of_callbacks_are_the_lines(self, tmp_path: Path) -> None:
        labels = [{"trainer.callbacks": chain, "alpha": a} for chain in ("FedAvg", "FedNova") for a in (0.1, 1)]
        pairs = [(Cell(each, ()), finished(tmp_path / str(n), top1=[0.1, 0.2])) for n, each in enumerate(labels)]
        picture(MINE, pairs, tmp_path)
        table = pd.read_csv(tmp_path / "curves.csv")
        assert table["panel"].unique().tolist() == ["alpha 0.1", "alpha 1"]
        assert table["method"].unique().tolist() == ["FedAvg", "FedNova"]

    def test_a_figure_gets_its_own(self, tmp_path: Path) -> None:
        (figure,) = find("fedmgc/fig-3")
        pairs = [(cell, finished(tmp_path / str(n), top1=[0.1])) for n, cell in enumerate(figure.cells)]
        assert picture(figure, pairs, tmp_path) == tmp_path / "figure.png"
        assert pd.read_csv(tmp_path / "figure.csv")["method"].tolist() == [
            "FedMGC",
            "FedAvg",
            "FedProx",
            "SCAFFOLD",
            "FedNova",
        ]

    def test_has_the_papers_numbers(self, tmp_path: Path) -> None:
        """The second round is the last; our 0.2 is 20 %."""
        experiment = dataclasses.replace(MINE, rows=({"method": "A", "top1": 25.0},))
        picture(experiment, [(Cell({"method": "A"}, ()), finished(tmp_path, top1=[0.1, 0.2]))], tmp_path)
        table = pd.read_csv(tmp_path / "curves.csv", keep_default_na=False)
        assert table[["round", "mean", "mark"]].to_numpy().tolist() == [[1, 10, ""], [2, 20, ""], [2, 25, "paper"]]

    def test_a_surface_of_each_method(self, tmp_path: Path) -> None:
        """Two methods have one after their last round, the third; (1, 2) of it lies at steps -0.5 and 1."""
        (figure,), pairs = find("fedgam/fig-4"), []
        for n, cell in enumerate(figure.cells[:3]):
            job = finished(tmp_path / str(n), top1=[0.1, 0.2, 0.3])
            pairs.append((cell, job))
            if n < 2:
                (job.run.folder / "arrays").mkdir()
                loss = 10.0 * n + np.arange(1.0, 10.0).reshape(3, 3)
                np.savez(job.run.folder / "arrays" / "surface_3.npz", steps=[-0.5, 0, 1], loss=loss)
        assert picture(figure, pairs[2:], tmp_path) is None
        assert picture(figure, pairs, tmp_path) == tmp_path / "figure.png"
        table = pd.read_csv(tmp_path / "figure.csv").set_index(["panel", "d1", "d2"])["loss"]
        assert len(table) == 18
        assert (table["FedAvg: 5", -0.5, 1.0], table["FedSAM: 15", -0.5, 1.0]) == (3.0, 13.0)

    def test_nothing_to_draw(self, tmp_path: Path) -> None:
        """One round; 36 lines, more than there are looks; no run; and no cell."""
        one = [(Cell({"method": "A"}, ()), finished(tmp_path / "one", top1=[0.1]))]
        many = [(Cell({"size": n}, ()), finished(tmp_path / str(n), top1=[0.1, 0.2])) for n in range(36)]
        for pairs in (one, many, [(Cell({}, ()), Job("", (), 1, 2, tmp_path / "nowhere"))], []):
            assert picture(MINE, pairs, tmp_path) is None


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_images(tmp_path / "images", CIFAR10, 3, 1)


def test_a_partition_takes_no_run(images: Path) -> None:
    """21 of 30 images are left to train on when each of 20 clients holds back 30 % of its own, rounded."""
    result = run("reproduce", "fedlaw/figure-13", "--data.root", images, "--data.held_out", 0)
    assert (result.status, result.err) == (0, "")
    folder = Path("runs/reproduce/fedlaw/fig-13")
    assert sorted(path.name for path in folder.iterdir()) == [f"figure.{kind}" for kind in ("csv", "pdf", "png", "svg")]
    table = pd.read_csv(folder / "figure.csv")
    assert (table["client"].nunique(), table["class"].nunique(), table["examples"].sum()) == (20, 10, 30)
    assert not Path("runs/reproduce/runs").exists()


@pytest.mark.slow
def test_from_the_command_to_the_page(images: Path) -> None:
    """Two rounds of 5 clients: ten pairs in the figure, the same smallest cosine in the table."""
    chosen = ["--subset", "num_clients=5", "alpha=IID", "--seeds", 1, "--rounds", 2]
    result = run("reproduce", "fedgh-paper/figure-2", *chosen, "--data.root", images, "--accelerator", "cpu")
    assert result.status == 0, result.out
    folder = Path("runs/reproduce/fedgh-paper/fig-2")
    table = pd.read_csv(folder / "figure.csv")
    similarities = table[table["panel"] == "cosine of a pair, num_clients 5"]
    assert similarities["pair of clients, by ascending cosine"].tolist() == list(range(1, 11))
    assert table[table["panel"] == "conflicting pairs, num_clients 5"]["round"].tolist() == [1, 2]
    results = pd.read_csv(folder / "results.csv")
    assert similarities["mean"].min() == pytest.approx(results["min_cosine"][0], abs=1e-6)
    assert "![fedgh-paper/fig-2](figure.png)" in (folder / "table.md").read_text()
    drawn = base64.b64encode((folder / "figure.svg").read_bytes()).decode()
    assert f'src="data:image/svg+xml;base64,{drawn}"' in (folder / "table.html").read_text()
