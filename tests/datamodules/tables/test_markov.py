"""MarkovTexts: chains by hand, texts by their frequencies, and a model that comes near the entropy, not below."""

import math

import numpy as np
import pytest
import torch
from lib.toy import trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.datamodules import MarkovTexts
from fl_lightning.datamodules.tables.markov import draw_texts, entropy_of, stationary

CHAIN = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


def test_a_chain_by_hand() -> None:
    """A word follows itself with 3/4 or goes to the other with 1/4, which goes back with 1/2: π = (2/3, 1/3)."""
    chain = np.array([[3 / 4, 1 / 4], [1 / 2, 1 / 2]])
    assert stationary(chain) == pytest.approx([2 / 3, 1 / 3])
    bits = 2 / 3 * (3 / 4 * math.log2(4 / 3) + 1 / 4 * 2) + 1 / 3
    assert entropy_of(chain) == pytest.approx(bits * math.log(2))
    assert entropy_of(np.full((5, 5), 0.2)) == pytest.approx(math.log(5))


def test_texts_have_the_chains_frequencies() -> None:
    """40,000 pairs of words of a chain of three: shares within five standard errors, at most 0.0125."""
    chain = np.array([[0.1, 0.6, 0.3], [0.5, 0.0, 0.5], [0.2, 0.2, 0.6]])
    texts = draw_texts(chain, 20_000, 3, np.random.default_rng(0))
    pairs = np.concatenate([texts[:, :2], texts[:, 1:]])
    for word in range(3):
        after = pairs[pairs[:, 0] == word, 1]
        assert np.bincount(after, minlength=3) / len(after) == pytest.approx(chain[word], abs=0.03)
    for place in range(3):
        assert np.bincount(texts[:, place], minlength=3) / 20_000 == pytest.approx(stationary(chain), abs=0.018)


def test_clients_of_a_group_share_a_chain() -> None:
    data = MarkovTexts(num_clients=5, chains=2, vocabulary=6, length=7, texts=4, test_texts=3)
    assert data.client_names is not None
    assert (data.num_clients, data.client_names[4], data.sizes.tolist()) == (5, "writer_00004", [4] * 5)
    counts = data.class_counts()
    assert counts is not None
    assert counts.tolist() == [[4, 0], [0, 4], [4, 0], [0, 4], [4, 0]]
    words, chains = data.load(False)
    assert (words.shape, words.dtype, chains.tolist()) == (
        (15, 7),
        torch.int64,
        [0] * 3 + [1] * 3 + [0] * 3 + [1] * 3 + [0] * 3,
    )
    assert 1 <= words.min() <= words.max() <= 6
    more, _ = MarkovTexts(num_clients=9, chains=2, vocabulary=6, length=7, texts=4, test_texts=3).load(False)
    assert torch.equal(more[:15], words), "a client's texts do not depend on the others"
    (first, second) = (entropy_of(chain) for chain in data.transitions)
    assert data.entropy == pytest.approx((3 * first + 2 * second) / 5)
    assert data.perplexity == pytest.approx(math.exp(data.entropy))
    assert [len(batch[0]) for batch in data.held_out_batches(3)] == [3]


def test_the_next_word_is_the_last_of_the_text() -> None:
    size = {"num_clients": 3, "chains": 2, "vocabulary": 6, "length": 7, "texts": 4, "test_texts": 3}
    words, _ = MarkovTexts(**size).load(True)  # type: ignore[arg-type]  # whole numbers
    data = MarkovTexts(**size, next_word=True)  # type: ignore[arg-type]
    before, last = data.load(True)
    assert data.num_classes == 7
    assert torch.equal(torch.column_stack([before, last]), words)


def test_a_language_model_comes_near_the_entropy_and_not_below() -> None:
    """Measured on the same test texts: the loss of the chain itself, which no model beats but by chance."""
    pytest.importorskip("transformers")
    from fl_lightning.models import CausalLM

    data = MarkovTexts(num_clients=2, chains=1, vocabulary=6, length=16, texts=512, test_texts=512, batch_size=64)
    words = data.load(False)[0].numpy() - 1
    chain = -np.log(data.transitions[0][words[:, :-1], words[:, 1:]]).mean()
    error = 5 * np.log(data.transitions[0][words[:, :-1], words[:, 1:]]).std() / math.sqrt(words[:, 1:].size)
    assert chain == pytest.approx(data.entropy, abs=error)
    torch.manual_seed(0)
    size = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 7}
    still = {"bos_token_id": 0, "eos_token_id": 0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    module = CausalLM("gpt2", {**size, **still}, False, optimizer=lambda params: torch.optim.AdamW(params, lr=0.01))
    run = trainer(rounds=8)
    run.fit(FederatedOrchestrator(module, local_epochs=2), datamodule=data)
    loss = run.callback_metrics["val/loss"].item()
    assert chain < loss < chain + 0.03, f"a guess has a loss of {math.log(6):.3f}, one by frequency alone a lower one"
    assert run.callback_metrics["val/perplexity"].item() == pytest.approx(math.exp(loss), rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chains": 0}, "chains must be at least 1, got 0"),
        ({"length": 1}, "length must be at least 2, got 1"),
        ({"alpha": 0.0}, "alpha must be positive and finite, got 0.0"),
    ],
)
def test_refuses_other_arguments(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        MarkovTexts(**arguments)  # type: ignore[arg-type]  # whole numbers and others
