"""What ExampleDP refuses because an example's gradient may depend on others, and examples that come twice.

Where the user vouches for it, it does harm: with another example in the place of one, the sum of eight clipped
gradients moves by more than 2 S, which is what ε counts with.
"""

import functools
from collections.abc import Callable
from typing import Any

import datasets
import pytest
import torch
from lib.toy import trainer
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, default_collate, random_split

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import ExampleDP
from fl_lightning.callbacks.privacy.by_example import parts_of
from fl_lightning.datamodules import Digits, HuggingFace, Tensors
from fl_lightning.datamodules.changes.augmentation import Augmentation, RandomFlip
from fl_lightning.models import ImageClassifier, LogisticRegression

ROWS = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
MODULE, DATA = "Sum", "Given"


class Sum(LightningModule):
    """The mean of w·c over a batch of rows c, one step of SGD(1) from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return (batch[0] @ self.w).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Given(FederatedDataModule):
    """Clients with given data sets, each in one batch."""

    def __init__(self, *datasets: Any, **settings: Any) -> None:
        super().__init__(batch_size=len(datasets[0]), **settings)
        self.datasets, self.num_clients = datasets, len(datasets)

    def client_dataset(self, client: int) -> Any:
        return self.datasets[client]


def fit(module: LightningModule, data: Any, by_example: Any = (), noise: float = 1e-30) -> Tensor:
    orchestrator = FederatedOrchestrator(module, on_hidden_state="off")
    trainer(ExampleDP(1.0, noise, by_example=by_example)).fit(orchestrator, datamodule=data)
    return orchestrator.params.clone()


def mixed(rows: Tensor) -> Tensor:
    """Mixes each row with the one before, half and half."""
    return (rows + rows.roll(1, 0)) / 2


def mix(examples: list[Any]) -> list[Tensor]:
    return [mixed(default_collate(examples)[0])]


class Mixes:
    """A callable."""

    def __call__(self, examples: list[Any]) -> list[Tensor]:
        return mix(examples)


def mixes_transferred(batch: Any) -> Any:
    return [mixed(batch[0])] if isinstance(batch, list) and isinstance(batch[0], Tensor) else batch


class MixesData(Given):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return mixes_transferred(batch)


class MixesModule(Sum):
    @torch.no_grad()
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return mixes_transferred(batch)


class Remembers(Sum):
    """Takes the mean of the whole batch away, when it sees one example of it."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if len(batch[0]) > 1:
            self.mean = batch[0].mean(0)
        return ((batch[0] - self.mean) @ self.w).mean()


class Looks(Sum):
    """Ends an epoch before its batch, by what is in the batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if float(batch[0].sum()) > float(ROWS.sum()) + 1 else None


class MixesExamples(Dataset[Any]):
    """Mixes an example with the next one."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor]:
        return ((self.rows[index] + self.rows[(index + 1) % len(self.rows)]) / 2,)


class OwnData(LightningDataModule):
    """An ordinary data module, to be dealt to one client."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.rows), batch_size=8)


class OwnMixes(OwnData):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return mixes_transferred(batch)


def dealt(rows: Tensor) -> Any:
    return FederatedDataModule.from_datamodule(OwnMixes(rows), num_clients=1)


Run = Callable[[Tensor], tuple[LightningModule, Any]]
MIXING: dict[str, tuple[Run, list[str]]] = {
    "collate_fn": (lambda x: (Sum(), Given(TensorDataset(x), collate_fn=mix)), ["mix (collate_fn)"]),
    "callable": (lambda x: (Sum(), Given(TensorDataset(x), collate_fn=Mixes())), ["Mixes (collate_fn)"]),
    "partial": (
        lambda x: (Sum(), Given(TensorDataset(x), collate_fn=functools.partial(mix))),
        ["mix (collate_fn)"],
    ),
    "data": (
        lambda x: (Sum(), MixesData(TensorDataset(x))),
        ["MixesData (data module)", "MixesData.on_after_batch_transfer (transfer hook)"],
    ),
    "module": (
        lambda x: (MixesModule(), Given(TensorDataset(x))),
        ["MixesModule (module)", "MixesModule.on_before_batch_transfer (transfer hook)"],
    ),
    "ordinary": (lambda x: (Sum(), dealt(x)), ["OwnMixes.on_after_batch_transfer (transfer hook)"]),
    "step": (lambda x: (Remembers(), Given(TensorDataset(x))), ["Remembers (module)"]),
    "data set": (lambda x: (Sum(), Given(MixesExamples(x))), ["MixesExamples (data set)"]),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_examples_is_refused_unless_it_is_named(name: str) -> None:
    make, expected = MIXING[name]
    with pytest.raises(ConfigurationError, match="may depend on other examples through") as caught:
        fit(*make(ROWS), by_example=[MODULE, DATA])
    told = str(caught.value)
    assert told.partition(" through ")[2].partition(", so ε")[0] == ", ".join(expected)
    names = told.partition("by_example: [")[2].removesuffix("]").split(", ")
    assert names == [each.rpartition(" (")[0] for each in expected]
    other = ROWS.clone()
    other[0] *= -3
    first, second = (fit(*make(rows), by_example=[MODULE, DATA, *names]) for rows in (ROWS, other))
    assert float((first - second).norm()) * 8 > 2.0 * (1 + 1e-9)


def test_a_hook_that_sees_the_batch() -> None:
    """It decides by one example whether eight others are in a sum, and is named apart from its module."""
    with pytest.raises(ConfigurationError, match=r"through Looks\.on_train_batch_start \(training hook\), so"):
        fit(Looks(), Given(TensorDataset(ROWS)), by_example=["Looks", DATA])
    fit(Looks(), Given(TensorDataset(ROWS)), by_example=["Looks", DATA, "Looks.on_train_batch_start"])


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Inner())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(1))  # type: ignore[no-any-return]


class Inner(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 10)


class Turns(Augmentation):
    def __call__(self, images: Tensor) -> Tensor:
        return images.flip(0)


def hook(module: Any, *others: Any) -> None:
    """Does nothing."""


def digits(**settings: Any) -> Digits:
    return Digits(num_clients=200, train_examples=600, **settings)


def test_the_packages_own_need_no_name() -> None:
    """Its networks and data, and torch's layers; of others, the outermost class is named."""
    own = ImageClassifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout()))
    fit(own, digits(augment=RandomFlip()), noise=1.0)
    fit(ImageClassifier(LogisticRegression(in_features=64)), digits(), noise=1.0)
    with pytest.raises(ConfigurationError, match=r"through Own \(network\), Turns \(augment\), so"):
        fit(ImageClassifier(Own()), digits(augment=[RandomFlip(), Turns()]))
    fit(ImageClassifier(Own()), digits(), by_example=["Own"], noise=1.0)
    for register in ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook"):
        network = LogisticRegression(in_features=64)
        getattr(network, register)(hook)
        with pytest.raises(ConfigurationError, match=r"through hook \(hook of a layer\), so"):
            fit(ImageClassifier(network), digits())


def test_names_are_a_list() -> None:
    with pytest.raises(ConfigurationError, match="by_example must be a list of names"):
        ExampleDP(by_example="Sum")


ONE = TensorDataset(ROWS)
VIEWS = [TensorDataset(ROWS[:5]), TensorDataset(ROWS[4:])]
EXAMPLES = [(row,) for row in ROWS]
TWICE: dict[str, tuple[Any, str]] = {
    "concatenated": (lambda: Given(ConcatDataset([ONE, ONE])), "client 0 has one several times"),
    "other data set": (
        lambda: Given(ConcatDataset([ONE, TensorDataset(*ONE.tensors)])),
        "client 0 has one several times",
    ),
    "nested": (lambda: Given(Subset(Subset(ONE, [0, 0, 1, 2]), [0, 1, 3])), "client 0 has one several times"),
    "from the end": (lambda: Given(Subset(ONE, [7, -1])), "client 0 has one several times"),
    "clients": (lambda: Given(ONE, Subset(ONE, [3])), "clients 0 and 1 share one"),
    "named": (lambda: Given(ONE, ONE, client_names=["rome", "oslo"]), r"clients 0 \(rome\) and 1 \(oslo\) share one"),
    "views": (lambda: Given(*VIEWS), "clients 0 and 1 share one"),
    "a list": (lambda: Given(EXAMPLES, Subset(EXAMPLES, [7])), "clients 0 and 1 share one"),  # type: ignore[arg-type]
    "stated": (
        lambda: FederatedDataModule.from_datamodule(OwnData(ROWS), partition=[[0, 1, 2], [2, 3], [4]]),
        "clients 0 and 1 share one",
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_an_example_that_comes_twice_is_refused(name: str) -> None:
    make, message = TWICE[name]
    with pytest.raises(
        ConfigurationError, match=f"counts an example once an epoch, but {message}, so ε would be false"
    ):
        fit(Sum(), make(), by_example=[MODULE, DATA, "list"])


def copied(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 2, dtype=torch.float64))


class Copies(Given):
    """Makes each client's data set anew, so that the places of the last one are free again."""

    def client_dataset(self, client: int) -> Any:
        return TensorDataset(self.datasets[client].tensors[0].clone())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Given(*random_split(ONE, [3, 5])),
        lambda: Given(ConcatDataset([copied(3), Subset(copied(4), [2, 0])]), copied(3)),
        lambda: Given(TensorDataset(ROWS[:4]), TensorDataset(ROWS[4:])),
        lambda: Given(TensorDataset(torch.ones(1, 2, dtype=torch.float64).expand(4, 2))),
        lambda: Copies(*[copied(4) for _ in range(20)]),
        lambda: Given(*[[(row,)] for row in ROWS]),
    ],
)
def test_examples_that_come_once(make: Any) -> None:
    fit(Sum(), make(), by_example=[MODULE, DATA, "Copies", "list"])


def test_where_examples_lie() -> None:
    """Of [a b c] and the third and first of [d e f g], the last, the first and the fourth: f at 2, a at 0, … d at 0."""
    first, second = "abc", "defg"
    both: Any = ConcatDataset([first, Subset(second, [2, 0])])  # type: ignore[list-item, arg-type]
    found = [(part, rows.tolist()) for part, rows in parts_of(both, torch.tensor([-2, 0, 4, 1]))]
    assert found == [("abc", [0, 1]), ("defg", [2, 0])]


def test_images_in_memory() -> None:
    """The package's own data: 40 images of two clients."""
    images = torch.randint(256, (40, 1, 4, 4), dtype=torch.uint8)
    data = Tensors(train=(images, torch.arange(40) % 2), test=(images, torch.arange(40) % 2), num_clients=2)
    fit(ImageClassifier(LogisticRegression(in_features=16, num_classes=2), num_classes=2), data, noise=1.0)


def test_a_hugging_face_data_set_may_have_a_transform() -> None:
    rows = datasets.Dataset.from_dict({"x": ROWS.float().tolist(), "y": [0, 1] * 4})
    data = HuggingFace(rows, columns=["x", "y"], num_clients=2)
    module = ImageClassifier(LogisticRegression(in_features=2, num_classes=2), num_classes=2)
    with pytest.raises(ConfigurationError, match=r"through Dataset \(data set\), so"):
        fit(module, data)
    fit(module, data, by_example=["Dataset"], noise=1.0)
