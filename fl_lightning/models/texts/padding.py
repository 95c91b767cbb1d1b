"""Tokens as networks of transformers read them: which places hold none, and which tokens a network has."""

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fl_lightning.datamodules.tables.tokens import NOTHING
from fl_lightning.errors import ConfigurationError
from fl_lightning.models.adapters import computing
from fl_lightning.models.texts.quantized import FrozenWeights


def to_front(tokens: Tensor, *others: Tensor, nothing: int = NOTHING) -> list[Tensor]:
    """Move the places that have no token behind the text, so that each text begins at its first place.

    >>> [moved.tolist() for moved in to_front(torch.tensor([[-100, 5, 6]]), torch.tensor([[0, 1, 2]]))]
    [[[5, 6, -100]], [[1, 2, 0]]]

    Args:
        tokens: int64 (B, T).
        others: values (B, T) of the same places, which move along.
        nothing: number that stands for no token.

    Returns:
        The tokens and the others, moved.
    """
    order = (tokens == nothing).int().argsort(dim=1, stable=True)
    return [values.gather(1, order) for values in (tokens, *others)]


def doubtful_tokens(config: Any, vocabulary: int) -> set[int]:
    """Return the numbers of the tokens that a model's config names as padding or as ends of a text; 0 if there is none.

    Args:
        config: config of the model.
        vocabulary: number of tokens; the config may name tokens that the model does not have.
    """
    ends = getattr(config, "eos_token_id", None)
    named = [getattr(config, "pad_token_id", None), *(ends if isinstance(ends, list) else [ends])]
    return {token for token in named if token is not None and 0 <= token < vocabulary} or {0}


def show_padding(network: Any) -> None:
    """Let a network of transformers see which places have no token, in place.

    Some networks classify by the last token that is not the padding of their config. For these, the padding is -100,
    which no token is. The network's base, below its head, has a config of its own, and sees its padding in such a
    place, or 0 if it has none.
    """
    network.config = copy.deepcopy(network.config)
    network.config.get_text_config().pad_token_id = NOTHING
    network.base_model.register_forward_pre_hook(_fill_up, with_kwargs=True)


def _fill_up(network: Any, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put a token in the place of -100 in the tokens that a network's base gets."""
    padding = getattr(network.config, "pad_token_id", None)
    if padding is None or not 0 <= padding < network.get_input_embeddings().num_embeddings:
        padding = 0

    def filled(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype == torch.int64:
            return value.masked_fill(value == NOTHING, padding)
        return value

    return tuple(map(filled, values)), {name: filled(value) for name, value in named.items()}


def marked(
    network: Any, tokens: Tensor, pad: int | None, doubtful: Collection[int], labels: Tensor | None = None
) -> Tensor:
    """Return tokens (B, T) with -100 in the place of padding.

    Args:
        network: the network of transformers that reads the tokens.
        tokens: int64 (B, T).
        pad: number of the token that fills up texts, before or after them; None if the data mark padding by -100.
        doubtful: tokens of which, in evaluation and without ``pad``, there may not be several at an end of a text.
        labels: int64 (B, T), -100 where a token is not to be predicted; then the last tokens are not in doubt.

    Raises:
        ConfigurationError: the tokens are not int64 (B, T), or they are in doubt.
    """
    check_form(network, tokens)
    if pad is not None:
        is_text = (tokens != pad).int()
        is_padding = (is_text.cumsum(1) == 0) | (is_text.flip(1).cumsum(1).flip(1) == 0)
        if labels is not None:
            is_padding = is_padding & (labels == NOTHING)
        return tokens.masked_fill(is_padding, NOTHING)
    if not network.training and tokens.shape[1] > 1:  # on a GPU a training step would have to wait for the answer
        _check_edges(network, tokens, doubtful, labels)
    return tokens


def _check_edges(network: Any, tokens: Tensor, doubtful: Collection[int], labels: Tensor | None) -> None:
    """Refuse texts (B, T) that seem to be filled up; with labels, only those filled up before their first token."""
    edges = [tokens[:, :2]]
    if labels is None:
        edges.append(tokens[:, -2:])
    for token in doubtful:
        if any(bool((edge == token).all(1).any()) for edge in edges):
            raise ConfigurationError(
                f"texts begin or end in several tokens {token}, of which {network.config.model_type} cannot tell "
                f"whether they are padding: set pad to {token} if they are, to {NOTHING} if they are not, or put "
                f"{NOTHING} in the place of padding"
            )


def check_form(network: Any, tokens: Tensor) -> None:
    """Refuse tokens that are not int64 (B, T).

    Raises:
        ConfigurationError: they are not.
    """
    if tokens.dtype != torch.int64 or tokens.ndim != 2:
        kind = network.config.model_type
        raise ConfigurationError(f"{kind} expects int64 tokens (B, T), got {tokens.dtype} {tuple(tokens.shape)}")


def logits_of(network: Any, frozen_dtype: FrozenWeights, tokens: Tensor, **inputs: Tensor) -> Tensor:
    """Return the logits of a network of transformers, float32 whatever the dtype of its frozen weights.

    Raises:
        ConfigurationError: a token is not in the vocabulary, or a text is too long.
    """
    name = network.config.model_type
    positions = getattr(network.config, "max_position_embeddings", None)
    if positions and tokens.shape[1] > positions:
        raise ConfigurationError(
            f"{name} has {positions} positions, got texts of {tokens.shape[1]} tokens: shorten the texts, or set "
            "max_position_embeddings in settings"
        )
    if not network.training:  # on a GPU a training step would have to wait for the answer
        _check_tokens(network, tokens)
    try:
        with computing(frozen_dtype, tokens):
            logits: Tensor = network(input_ids=tokens, **inputs).logits
    except IndexError:
        _check_tokens(network, tokens)
        raise
    return logits if frozen_dtype == "float32" else logits.float()


def _check_tokens(network: Any, tokens: Tensor) -> None:
    vocabulary = network.get_input_embeddings().num_embeddings
    tokens = tokens[tokens != NOTHING]
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ConfigurationError(
            f"{network.config.model_type} has the tokens 0 to {vocabulary - 1}, got {int(tokens.min())} to "
            f"{int(tokens.max())}: set vocab_size in settings, or cut the texts by this model's tokenizer"
        )
