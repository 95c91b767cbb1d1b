"""Data modules that stand for another one: what is that one's own, what concerns all clients, and what is walled."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lib import tiny_images
from lib.at_sites import remote, sites
from lib.command import rows
from lib.toy import trainer
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import ClientDP
from fl_lightning.datamodules import Dirichlet, ImageFolder, Tensors
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.sites.data import RemoteData, SiteData
from fl_lightning.engine.sites.facts import Facts
from fl_lightning.engine.sites.sites import Sites
from fl_lightning.models import ImageClassifier

CLIENTS, ROUNDS = 6, 3


class Levels(Tensors):
    """Has an attribute that its module sets, a method that its module calls, and a state that a checkpoint keeps."""

    level = 0

    def weight_of(self, level: int) -> float:
        return 1 / (1 + level)

    def client_batches(self, client: int, order: torch.Generator) -> Iterable[Any]:
        return [*super().client_batches(client, order)][self.level % 2 :]

    def state_dict(self) -> dict[str, Any]:
        return {"level": 7}


def levels(**settings: Any) -> Levels:
    """Clients of different sizes, each of which has 2 batches or more."""
    given: dict[str, Any] = {"num_clients": CLIENTS, "batch_size": 4, "mean": (0.3,), "std": (0.3,), "num_classes": 3}
    given |= {"partition": Dirichlet(5.0), **settings}
    return Levels(train=tiny_images.images(120, 0), test=tiny_images.images(30, 1), **given)


class Reads(ImageClassifier):
    """Reads, calls and sets what its own data module has."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = super().training_step(batch, batch_idx)
        data = self.trainer.datamodule  # type: ignore[attr-defined]  # set outside Trainer.__init__
        return {**outputs, "loss": outputs["loss"] * data.weight_of(data.level)}

    def on_train_start(self) -> None:
        data = self.trainer.datamodule  # type: ignore[attr-defined]  # as above
        assert isinstance(data, Levels)
        data.level = 1


class Warm(ImageClassifier):
    """Warms up, then cools down, over the client's own steps."""

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(sgd, 0.1, total_steps=steps)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


def module(kind: type[ImageClassifier] = ImageClassifier, num_classes: int = 3) -> LightningModule:
    made: Any = tiny_images.client()
    network = nn.Sequential(*made.network[:6], nn.Linear(6, num_classes))
    return kind(network, num_classes, optimizer=lambda params: torch.optim.SGD(params, lr=0.05))


def fitted(
    make: Callable[[], LightningModule],
    *more: Callback,
    sites: Sites | None = None,
    place: Callable[[FederatedData], FederatedData] = lambda data: data,
    folder: Path | None = None,
    data: Callable[[], FederatedData] = levels,
) -> dict[str, Any]:
    """Train some rounds; the checkpoint at the end."""
    torch.manual_seed(0)
    orchestrator = FederatedOrchestrator(make(), on_bad_update="raise")
    orchestrator.sites = sites
    run = trainer(*more, rounds=ROUNDS, logger=CSVLogger(folder, name="", version="") if folder else False)
    placed = place(data())
    run.fit(orchestrator, datamodule=placed if sites is None else remote(placed, sites))
    if folder:
        run.save_checkpoint(folder / "last.ckpt")
        return dict(torch.load(folder / "last.ckpt", weights_only=True))
    return {}


def assert_as_here(folder: Path, make: Callable[[], LightningModule]) -> None:
    """Train here and at three sites: all tensors, all logged numbers and the data module's state are the same."""
    here = fitted(make, folder=folder / "here")
    with sites(partial(fitted, make), CLIENTS, folder) as apart:
        there = fitted(make, sites=apart, folder=folder / "there")
    weights: dict[str, Tensor] = here["state_dict"]
    for name, value in weights.items():
        assert torch.equal(there["state_dict"][name], value), name
    assert rows(folder / "there/metrics.csv") == rows(folder / "here/metrics.csv")
    assert here["Levels"] == there["Levels"] == {"level": 7}


def test_a_module_reads_and_sets_what_its_data_module_has(tmp_path: Path) -> None:
    assert_as_here(tmp_path, partial(module, Reads))


def test_a_warm_up_over_the_own_steps_has_the_bits_of_a_fit(tmp_path: Path) -> None:
    """Each site asks for the steps of its own clients, of which the largest is at one of them."""
    sizes = levels().sizes.tolist()
    assert len(set(sizes)) > 3
    assert_as_here(tmp_path, partial(module, Warm))


def test_a_model_of_other_classes_is_refused_as_in_a_fit(tmp_path: Path) -> None:
    make = partial(module, num_classes=12)
    message = "the data has 3 classes, the model 12"
    with pytest.raises(ConfigurationError, match=message):
        fitted(make)
    with sites(partial(fitted, make), CLIENTS, tmp_path) as apart, pytest.raises(ConfigurationError, match=message):
        fitted(make, sites=apart)


FACTS = [Facts(client, 10 + client, [4, 6 + client], ["a", "b"], None, f"{client}") for client in range(2)]


def stand_ins(own: FederatedData) -> list[FederatedData]:
    return [RemoteData(own, FACTS), SiteData(own, {1: 0}, torch.tensor([10, 11]))]


def test_what_is_measured_on_examples_is_refused_by_a_private_rule_as_in_a_fit() -> None:
    """It moves what clients send; the list of settings that were copied lacked it."""
    own = ImageFolder("nowhere")
    assert own.measured == {"mean and std": "set mean and std"}
    rule = ClientDP(noise_multiplier=1.0, clip=1.0)
    for placed in stand_ins(own):
        orchestrator = FederatedOrchestrator(module())
        orchestrator.trainer = trainer()
        orchestrator.trainer.datamodule = placed  # type: ignore[attr-defined]  # as a fit does
        with pytest.raises(ConfigurationError, match="ImageFolder measures mean and std on the examples of all clien"):
            rule._refuse_measured(orchestrator)


@pytest.mark.parametrize("method", ["client_dataset", "client_batches", "held_out_batches", "epoch_rows"])
def test_the_examples_of_other_sites_are_walled(method: str) -> None:
    """At the server all are elsewhere; at the site, client 1 is its own client 0, and client 0 is elsewhere."""
    own = levels(num_clients=1, held_out=0.2)
    server, site = stand_ins(own)
    more = [torch.Generator()] if method in ("client_batches", "epoch_rows") else []
    for placed, client in ((server, 0), (server, 1), (site, 0)):
        with pytest.raises(ConfigurationError, match=rf"examples of client {client}, which lie at another site"):
            getattr(placed, method)(client, *more)
    assert getattr(site, method)(1, *more)


def test_what_concerns_all_clients_is_not_that_of_the_own_data() -> None:
    own = levels(num_clients=1)
    for placed in stand_ins(own):
        assert placed.num_clients == 2
        assert placed.sizes.tolist() == [10, 11]
        assert placed.cohort(1) == [0, 1]
        assert placed.client_num_samples(1) == placed.size_of(1) == 11
    server, site = stand_ins(own)
    assert [server.has_examples(0), site.has_examples(0), site.has_examples(1)] == [False, False, True]
    assert RemoteData(own, FACTS, ["anna", "berlin"]).client_label(1) == "1 (berlin)"


def test_what_is_asked_of_a_client_is_answered_by_its_number_in_the_federation() -> None:
    """The own data know the client by another number: each method that takes a client is defined for both."""
    for name, method in inspect.getmembers(FederatedData, inspect.isfunction):
        if not name.startswith("_") and "client" in inspect.signature(method).parameters:
            for placed in stand_ins(levels(num_clients=1)):
                assert placed._is_here(name), name


def test_all_else_is_that_of_the_own_data() -> None:
    own = levels(num_clients=1, participation=0.5)
    for placed in stand_ins(own):
        assert isinstance(placed, Levels)
        assert placed.participation == 0.5
        placed.participation = 1
        assert own.participation == 1
        own.participation = 0.5
        for hook in ("val_dataloader", "predict_dataloader", "on_after_batch_transfer", "teardown", "prepare_data"):
            assert is_overridden(hook, placed) == is_overridden(hook, own)
        assert placed.num_classes == 3
        with pytest.raises(AttributeError, match="'Levels' object has no attribute 'no_such_thing'"):
            placed.no_such_thing()


def test_a_modules_own_loaders_are_borrowed_and_given_back() -> None:
    own = levels(num_clients=1)
    lender: Any = module()
    lender.predict_dataloader = lambda: [1]
    for placed in (*stand_ins(own), RemoteData(own, FACTS, loads=False)):
        placed.borrow_loaders(lender)
        assert placed.predict_dataloader() == [1]
        placed.borrow_loaders(None)
        assert not is_overridden("predict_dataloader", placed)


class Loads(Levels):
    """Notes what loads data."""

    def setup(self, stage: str) -> None:
        raise AssertionError(stage)

    @property
    def num_sites(self) -> int:
        raise ConfigurationError("no file is there")


def test_a_server_without_data_loads_none() -> None:
    own = Loads(train=tiny_images.images(9, 0), test=tiny_images.images(9, 1), num_clients=1, held_out=0.5)
    server: Any = RemoteData(own, FACTS, loads=False)
    server.setup("fit")
    assert not is_overridden("val_dataloader", server)
    assert server.proxy_dataloader() is None
    assert server.domain_batches() == {}
    assert server.held_out == 0.5
    assert getattr(server, "num_sites", 4) == 4
    with pytest.raises(AttributeError, match=r"Loads.num_sites is not known at a server without data: no file is ther"):
        server.num_sites()


class Draws(Levels):
    """Draws the clients of a round itself."""

    def cohort(self, round: int) -> list[int]:
        return [round % self.num_clients]


def test_a_data_module_that_draws_clients_itself_is_refused() -> None:
    own = Draws(train=tiny_images.images(9, 0), test=tiny_images.images(9, 1), num_clients=1)
    with pytest.raises(ConfigurationError, match=r"Draws defines cohort, but .*: draw them by a ClientSampler"):
        RemoteData(own, FACTS)
