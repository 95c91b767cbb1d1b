"""Networks for texts: sizes by hand, what zeros change, a step of training, refusals."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lib.toy import trainer
from torch import nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.datamodules import LabelledData
from fl_lightning.errors import ConfigurationError
from fl_lightning.models import BagOfWords, CharLSTM, ImageClassifier, TextLSTM


def lstm(entering: int, hidden: int) -> int:
    """Four gates, each with weights of the input, of the state and, in PyTorch, two biases."""
    return 4 * hidden * (entering + hidden + 2)


SIZES: dict[str, tuple[Callable[[], nn.Module], list[int], int]] = {
    "CharLSTM": (CharLSTM, [80 * 8, lstm(8, 256) + lstm(256, 256), 80 * 257], 819_920),
    "small CharLSTM": (lambda: CharLSTM(5, 2, 3, layers=1), [10, lstm(2, 3), 5 * 4], 114),
    "TextLSTM": (TextLSTM, [10_000 * 100, 2 * lstm(100, 100), 2 * 101], 1_161_802),
    "BagOfWords": (BagOfWords, [10_000 * 32, 2 * 33], 320_066),
}
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "CharLSTM": lambda: CharLSTM(7, 4, 5),
    "TextLSTM": lambda: TextLSTM(7, 20, 4, 5),
    "BagOfWords": lambda: BagOfWords(7, 20, 4),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_by_hand(name: str) -> None:
    make, layers, total = SIZES[name]
    network = make()
    assert [sum(parameter.numel() for parameter in part.parameters()) for part in network.children()] == layers
    assert sum(parameter.numel() for parameter in network.parameters()) == sum(layers) == total


def test_the_printed_size_of_the_character_network() -> None:
    """With one bias in each gate, three peephole weights in each cell and 258 characters: 866,578."""
    second_biases, peepholes = 2 * 4 * 256, 2 * 3 * 256
    assert sum(parameter.numel() for parameter in CharLSTM(258).parameters()) - second_biases + peepholes == 866_578


@pytest.mark.parametrize("name", NETWORKS)
def test_shapes_and_gradients(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    logits = network(torch.randint(1, 7, (8, 6)))
    assert logits.shape == (8, 7)
    F.cross_entropy(logits, torch.arange(8) % 7).backward()
    for part, parameter in network.named_parameters():
        assert parameter.grad is not None, part
        assert parameter.grad.any(), part


@pytest.mark.parametrize("name", ["TextLSTM", "BagOfWords"])
def test_zeros_after_the_last_word_change_nothing(name: str) -> None:
    """Nor does the embedding of 0; a text without a word has finite logits."""
    torch.manual_seed(0)
    network: Any = NETWORKS[name]()
    words = torch.tensor([[3, 4, 5], [6, 2, 0], [0, 0, 0]])
    longer = F.pad(words, (0, 4))
    before = network(words)
    assert torch.allclose(network(longer), before)
    with torch.no_grad():
        network.embedding.weight[0] += 1
    after = network(longer)
    assert torch.allclose(after[:2], before[:2])
    assert after.isfinite().all()


@pytest.mark.parametrize("make", [lambda: TextLSTM(3, 7, 4, 5, pad=None), lambda: BagOfWords(3, 7, 4, pad=None)])
@pytest.mark.parametrize("longer", [[[0, 4, 0, -100, -100]], [[-100, -100, 0, 4, 0]], [[-100, 0, 4, -100, 0]]])
def test_places_without_a_word_change_nothing(make: Callable[[], nn.Module], longer: list[list[int]]) -> None:
    """Where data mark them by -100, whatever side they are on, 0 is a word like any other, at the end, too."""
    torch.manual_seed(0)
    network: Any = make()
    text = torch.tensor([[0, 4, 0]])
    assert torch.allclose(network(torch.tensor(longer)), network(text), atol=1e-7)
    assert not torch.allclose(network(text[:, :2]), network(text), atol=1e-3)


def test_words_after_zeros() -> None:
    """A text that is filled up before its first word has the classes of the same text filled up after its last one."""
    torch.manual_seed(0)
    network = TextLSTM(3, 7, 4, 5)
    assert torch.allclose(network(torch.tensor([[0, 0, 3, 4]])), network(torch.tensor([[3, 4, 0, 0]])))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (TextLSTM(2, 7, 4, 5), r"TextLSTM has the numbers 0 to 6, got -100 to 3: set vocabulary .*, and pad to null"),
        (BagOfWords(2, 7, 4), r"BagOfWords has the numbers 0 to 6, got -100 to 3: set vocabulary .*, and pad to null"),
        (CharLSTM(7, 4, 5), r"CharLSTM has the numbers 0 to 6, got -100 to 3: set num_classes .* have one length"),
    ],
)
def test_refuses_numbers_of_no_word(network: nn.Module, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        network(torch.tensor([[3, -100]]))


def test_order_counts_for_the_lstm_alone() -> None:
    torch.manual_seed(0)
    words = torch.tensor([[3, 4, 5, 0]])
    other = torch.tensor([[5, 3, 4, 0]])
    bag, sequence = NETWORKS["BagOfWords"](), NETWORKS["TextLSTM"]()
    assert torch.allclose(bag(words), bag(other))
    assert not torch.allclose(sequence(words), sequence(other))


def test_the_mean_of_two_words() -> None:
    network: Any = BagOfWords(2, 3, 1)
    network.embedding.weight.data = torch.tensor([[9.0], [1.0], [2.0]])
    network.classifier.weight.data = torch.tensor([[2.0], [4.0]])
    network.classifier.bias.data = torch.tensor([0.0, 1.0])
    assert network(torch.tensor([[1, 2, 0, 0]])).tolist() == [[3.0, 7.0]]


class Words(LabelledData):
    """Texts of three words; the class is 1 if the first word is a 2, and 0 if it is a 3."""

    num_classes = 2

    def load(self, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
        texts = torch.randint(2, 4, (64, 3), generator=torch.Generator().manual_seed(int(train)))
        texts[:, 2] = 0
        return texts, (texts[:, 0] == 2).long()


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize(
    "network", [lambda: CharLSTM(4, 4, 8), lambda: TextLSTM(2, 4, 4, 8), lambda: BagOfWords(2, 4, 4)]
)
def test_a_federation_learns_the_first_word(network: Any, together: int) -> None:
    """One client after another, and several at once; a bag of words cannot tell which word is the first."""
    torch.manual_seed(0)
    made = network()
    classes = made.classifier.out_features
    client = ImageClassifier(made, classes, optimizer=lambda params: torch.optim.Adam(params, lr=0.05))
    data = Words(num_clients=4, batch_size=8, clients_per_batch=together)
    data.num_classes = classes
    run = trainer(rounds=10)
    run.fit(FederatedOrchestrator(client), datamodule=data)
    assert float(run.callback_metrics["val/top1"]) > (0.6 if isinstance(made, BagOfWords) else 0.95)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CharLSTM(0), "num_classes must be at least 1, got 0"),
        (lambda: TextLSTM(vocabulary=0), "vocabulary must be at least 1, got 0"),
        (lambda: BagOfWords(embedding=0), "embedding must be at least 1, got 0"),
    ],
)
def test_refusals(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
