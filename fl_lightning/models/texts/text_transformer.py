"""TextTransformer: a network of transformers that classifies texts."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fl_lightning.datamodules.base.settings import Unpack
from fl_lightning.datamodules.tables.tokens import NOTHING
from fl_lightning.errors import check_at_least
from fl_lightning.later import later
from fl_lightning.models.adapters import Targeted, adapt_network
from fl_lightning.models.texts.making import head_of, make_network, make_small, usual_targets
from fl_lightning.models.texts.padding import doubtful_tokens, logits_of, marked, show_padding, to_front
from fl_lightning.models.texts.quantized import FrozenWeights, check_frozen, names_of


class TextTransformer(nn.Module):
    """Any network of transformers that classifies texts, for :class:`ImageClassifier`, which trains it.

    Texts are int64 tokens (B, T), -100 where there is no token, before a text or after it. A network that classifies by
    the last token takes that before the padding, whatever its number.

    Args:
        model: as for :class:`CausalLM`.
        settings: as for :class:`CausalLM`.
        weights: as for :class:`CausalLM`.
        pad: as for :class:`CausalLM`.
        frozen_dtype: as for :class:`CausalLM`.
        checkpointing: as for :class:`CausalLM`.
        num_classes: number of outputs; the head that gives them is drawn at random, even with ``weights``.
        adapting: ``adapt``, which says what of the network trains, and the other arguments of
            :func:`~fl_lightning.models.adapters.adapt_network`; by default, matrices stand beside the layers that peft
            chooses for the model.

    Raises:
        ConfigurationError: as :class:`CausalLM`.
    """

    @later(frozen_dtype="float32", checkpointing=False, pad=None)
    @later(alpha=None, dropout=0.0, rslora=False, dora=False, modules_to_save=())
    def __init__(
        self,
        model: str,
        num_classes: int = 2,
        settings: Mapping[str, Any] | None = None,
        weights: bool = True,
        pad: int | None = None,
        frozen_dtype: FrozenWeights = "float32",
        checkpointing: bool = False,
        **adapting: Unpack[Targeted],
    ) -> None:
        super().__init__()
        check_at_least(1, num_classes=num_classes)
        check_frozen(frozen_dtype, weights, adapting)
        self.network = make_network(
            "SequenceClassification", model, settings or {}, weights, frozen_dtype, num_labels=num_classes
        )
        head = head_of(self.network)
        in_head = {own for part in head for own in self.network.get_submodule(part).parameters()}
        downloaded = set(self.network.parameters()) - in_head if weights else set()
        usual = usual_targets(self.network)
        adapt_network(self.network, head, lora_trains_head=True, usual=usual, **adapting)
        self.frozen_dtype = make_small(self.network, frozen_dtype, checkpointing)
        self.from_elsewhere = names_of(self, downloaded)
        vocabulary = self.network.get_input_embeddings().num_embeddings
        self.pad, self.doubtful = pad, doubtful_tokens(self.network.config, vocabulary)
        show_padding(self.network)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, num_classes) of int64 tokens (B, T)."""
        (tokens,) = to_front(marked(self.network, tokens, self.pad, self.doubtful))
        return logits_of(self.network, self.frozen_dtype, tokens, attention_mask=(tokens != NOTHING).long())
