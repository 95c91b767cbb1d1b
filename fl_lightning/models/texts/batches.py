"""The forms of a language model's batches: tokens, masks and labels."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fl_lightning.datamodules.tables.tokens import NOTHING
from fl_lightning.errors import ConfigurationError


def parts_of(batch: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the tokens (B, T), the mask (B, T) and the labels (B, T) of a batch, None for what the batch lacks.

    Args:
        batch: tokens; a list or tuple that begins with tokens and, optionally, labels; or a dict.

    Raises:
        ConfigurationError: a dict has no ``input_ids``.
    """
    if isinstance(batch, Mapping):
        if "input_ids" not in batch:
            raise ConfigurationError(
                f"expected input_ids in the batches of a language model, got {', '.join(map(str, batch))}: set "
                "tokenizer in the data, or rename the entry"
            )
        tokens, mask, labels = batch["input_ids"], batch.get("attention_mask"), batch.get("labels")
    else:
        tokens, *others = batch if isinstance(batch, list | tuple) else [batch]
        mask, labels = None, others[0] if others else None
    return tokens, mask, labels if labels is not None and labels.ndim == 2 else None


def check_targets(network: Any, tokens: Tensor, labels: Tensor) -> None:
    """Refuse labels (B, T) that are not the tokens (B, T) of their places, nor -100.

    An attention mask, or the tokens moved by a place, would be learned in silence. In training, this is looked at on a
    CPU, one client at a time: a GPU would have to wait for the answer.
    """
    if labels.shape != tokens.shape:
        kind, shapes = network.config.model_type, f"{tuple(labels.shape)} for {tuple(tokens.shape)}"
        raise ConfigurationError(f"{kind} expects a label for each token, got {shapes}")
    if network.training and (labels.device.type != "cpu" or torch.compiler.is_compiling()):
        return
    is_other = (labels != tokens) & (labels != NOTHING) & (tokens != NOTHING)
    try:
        is_wrong = bool(is_other.any())
    except RuntimeError:  # several clients at once, of which none can be asked
        return
    if is_wrong:
        label, token = int(labels[is_other][0]), int(tokens[is_other][0])
        raise ConfigurationError(
            f"{network.config.model_type} expects labels that are the tokens of their places, or {NOTHING}, got "
            f"{label} for token {token}: give an attention mask in a dict of input_ids and attention_mask, and labels "
            "that are not moved"
        )
