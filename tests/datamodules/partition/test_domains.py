"""DomainDirichlet: each domain has clients of its own; the domains of tensors, own loaders and folders; refusals."""

import math

import numpy as np
import pytest
import torch
from lib.partitions import split
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.datamodules import Dirichlet, DomainDirichlet, LabelledData
from fl_lightning.errors import ConfigurationError

CLASSES = torch.arange(600) % 3
DOMAINS = np.array(["sketch", "art", "photo"])[np.arange(600) // 200]


class Pictures(LabelledData):
    """600 training and 60 test examples; an example's input is its row."""

    num_classes = 3

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        count = 600 if train else 60
        return torch.arange(float(count))[:, None], CLASSES[:count]

    def domains(self, train: bool) -> list[str]:
        return list(DOMAINS[:: 1 if train else 10])


def held(data: FederatedDataModule) -> list[set[str]]:
    """The domains of each client's training examples."""
    dealt = data._dealt
    assert dealt is not None
    return [set(DOMAINS[dealt.parts[client].numpy()]) for client in range(data.num_clients)]


@pytest.mark.parametrize("alpha", [0.1, 1.0, math.inf])
def test_each_domain_is_divided_as_dirichlet_divides_it_alone(alpha: float) -> None:
    """The first domain in sorted order, art (rows 200 to 399), draws first."""
    pairs = torch.stack([torch.from_numpy(np.unique(DOMAINS, return_inverse=True)[1]), CLASSES], dim=1)
    parts = split(DomainDirichlet(alpha, clients_per_domain=4), pairs, 12, seed=3)
    alone = split(Dirichlet(alpha), CLASSES[200:400], 4, seed=3)
    assert torch.cat(parts).sort().values.tolist() == list(range(600))
    for own, expected in zip(parts[:4], alone, strict=True):
        assert own.tolist() == (expected + 200).tolist()


def test_a_class_with_domains() -> None:
    data = Pictures(partition=DomainDirichlet(1.0, clients_per_domain=2), num_clients=20)
    assert data.num_clients == 6
    assert data.client_names == ["art 1", "art 2", "photo 1", "photo 2", "sketch 1", "sketch 2"]
    assert held(data) == [{"art"}, {"art"}, {"photo"}, {"photo"}, {"sketch"}, {"sketch"}]
    counts = {name: sum(len(batch[0]) for batch in batches) for name, batches in data.domain_batches().items()}
    assert counts == {"art": 20, "photo": 20, "sketch": 20}


@pytest.mark.parametrize("values", [DOMAINS, np.arange(600) // 50], ids=["texts", "integers"])
def test_a_column_of_an_ordinary_data_set(values: np.ndarray) -> None:
    """Twelve integers are sorted as numbers: 10 comes after 9."""
    rows = TensorDataset(torch.arange(600.0), CLASSES)
    rows.place = values  # type: ignore[attr-defined]
    partition = DomainDirichlet(1.0, clients_per_domain=2, column="place")
    data = FederatedDataModule.from_loaders(rows, partition=partition)
    data.setup("fit")
    names = sorted(set(values.tolist()))
    assert data.client_names == [f"{name} {number}" for name in names for number in (1, 2)]
    for client, name in enumerate(data.client_names or ()):
        own = values[data._dealt.parts[client].numpy()]
        assert set(own.astype(str)) <= {name.split(" ")[0]}
    counts = data.class_counts()
    assert counts is not None
    assert counts.sum().item() == 600


def test_refusals() -> None:
    with pytest.raises(ConfigurationError, match="clients_per_domain must be at least 1, got 0"):
        DomainDirichlet(1.0, clients_per_domain=0)
    with pytest.raises(ConfigurationError, match="expected alpha > 0, got -1"):
        DomainDirichlet(-1)

    class Plain(Pictures):
        domains = LabelledData.domains  # type: ignore[assignment]

    with pytest.raises(ConfigurationError, match="DomainDirichlet divides domains, but Plain knows no domains"):
        Plain(partition=DomainDirichlet(1.0)).client_dataset(0)
    rows = TensorDataset(torch.arange(600.0), CLASSES)
    with pytest.raises(ConfigurationError, match="DomainDirichlet sets the number of clients, got num_clients=4"):
        FederatedDataModule.from_loaders(rows, num_clients=4, partition=DomainDirichlet(1.0, column="place"))
    with pytest.raises(ConfigurationError, match="Natural or DomainDirichlet with a column, got none of them"):
        FederatedDataModule.from_loaders(rows, partition=DomainDirichlet(1.0))
