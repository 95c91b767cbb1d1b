"""Command lines that people who know other programs type: each is answered with what to type here."""

from pathlib import Path

import pytest
from lib.command import fit

from fl_lightning import ConfigurationError
from fl_lightning.fit.read_config import config_of

FIT = {  # what follows ``fit --config tiny.yaml``, and the answer
    "--rounds 10": "there is no option --rounds; the number of rounds is --trainer.max_epochs 10",
    "--num-rounds 10": "there is no option --num-rounds; the number of rounds is --trainer.max_epochs 10",
    "--trainer.rounds 10": "there is no option --trainer.rounds; the number of rounds is --trainer.max_epochs 10",
    "--epochs 5": (
        "there is no option --epochs; rounds are --trainer.max_epochs 5, a client's epochs in a round "
        "--model.local_epochs 5"
    ),
    "--seed 3": "there is no option --seed; the seed is --seed_everything 3",
    "--lr 0.1": "there is no option --lr; the clients' learning rate is --model.client.optimizer.lr 0.1",
    "--model.lr 0.1": "there is no option --model.lr; the clients' learning rate is --model.client.optimizer.lr 0.1",
    "--clients 50": (
        "there is no option --clients; the number of clients is --data.num_clients 50, that of a round "
        "--data.participation"
    ),
    "--batch_size 16": "there is no option --batch_size; the size of a client's batches is --data.batch_size 16",
    "--alpha 0.1": "there is no option --alpha; the concentration of the partition is --data.partition.alpha 0.1",
    "--data.alpha 0.1": (
        "data: there is no option alpha; the concentration of the partition is --data.partition.alpha"
    ),
    "--data.clients 50": "data: there is no option clients; did you mean num_clients?",
    "--gpus 1": "there is no option --gpus; GPUs are --trainer.accelerator gpu --trainer.devices 1",
    "--dataset CIFAR10": "there is no option --dataset; the data set is --data CIFAR10",
    "--strategy FedProx": "there is no option --strategy; a rule is --trainer.callbacks+=FedProx, or another class",
    "--local_epochs 2": "there is no option --local_epochs; did you mean --model.local_epochs?",
    "--model.local_graph false": (
        "there is no option --model.local_graph; leave it out: local steps are no longer captured as CUDA graphs, "
        "which keep what a step reads"
    ),
    "--verbose --devices 2": "there is no option --verbose; --help lists what there is",
    "other.yaml": "expected an option, got other.yaml: a config is --config other.yaml",
    "10": "expected an option, got 10: --help lists the options",
    "--trainer.callbacks+=FedProx(mu=-1)": (
        "trainer.callbacks: write the arguments of FedProx as options: --trainer.callbacks+=FedProx "
        "--trainer.callbacks.mu=-1"
    ),
    "--data ImageFolder --data.root x --data.leave_out bern": "data.leave_out: expected a list, got bern: write [bern]",
    "--data.partition Dirichlet(0.5)": (
        "data.partition: write the arguments of Dirichlet as options: --data.partition=Dirichlet "
        "--data.partition.OPTION=0.5"
    ),
}


@pytest.mark.parametrize("words", FIT)
def test_the_option_that_is_meant(words: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        config_of(["--config=tiny.yaml", *words.split()])
    assert str(refusal.value) == FIT[words]


def test_a_finished_run_says_how_to_go_on(last: Path) -> None:
    """A run that goes on says nothing of the kind."""
    words = "all 2 rounds were done before, none was trained: --trainer.max_epochs 3 or more goes on"
    assert words in fit("--ckpt_path", "last").out.splitlines()
    assert "were done before" not in fit("--ckpt_path", "last", "--trainer.max_epochs", 3).out
