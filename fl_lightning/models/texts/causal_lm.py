"""CausalLM: trains a language model of transformers to predict the next token."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.text import Perplexity
from typing_extensions import override

from fl_lightning.arguments import picklable_defaults
from fl_lightning.datamodules.base.settings import Unpack
from fl_lightning.datamodules.files.pretrained import import_transformers, silent
from fl_lightning.datamodules.tables.tokens import NOTHING
from fl_lightning.errors import ConfigurationError, check_choice
from fl_lightning.later import later
from fl_lightning.models.adapters import Targeted, adapt_network, computing
from fl_lightning.models.classifier import with_schedule
from fl_lightning.models.texts.batches import check_targets, parts_of
from fl_lightning.models.texts.making import head_of, make_network, make_small, usual_targets
from fl_lightning.models.texts.padding import check_form, doubtful_tokens, logits_of, marked, to_front
from fl_lightning.models.texts.quantized import FrozenWeights, check_frozen, names_of


@picklable_defaults
class CausalLM(LightningModule):
    """Trains a language model to predict the next token; logs ``val/loss``, ``val/perplexity``, ``val/token_top1``.

    Batches are int64 tokens (B, T), -100 where there is no token, before a text or after it. All tokens but the first
    of each text are predicted: that of the text's end, too. Pairs of tokens and labels (B, T) say which: the token at
    each place, and -100 where the token is not to be predicted. The second of a pair may also be a class (B,), which
    is left out. Dicts hold ``input_ids`` (B, T) and, optionally, ``attention_mask`` (B, T), 0 where there is no token,
    and ``labels``, as transformers' collators give them; other entries are left out. The loss is the mean over all
    predicted tokens of the batch, or of all batches whose gradients add up by ``accumulate_grad_batches``, and
    ``test/…`` the same as ``val/…``.

    ``training_step`` returns the loss alone: rules that use the classes or features of examples (FedLC, FedRS, FedNTD,
    FedSOL, FocalLoss, FedRoD, FedProto, MOON, FedDecorr) do not apply.

    Args:
        model: name on the hub, or folder, of a pretrained model; without ``weights``, a type of transformers, such as
            ``gpt2``.
        settings: settings of the model's config, such as ``n_layer: 2`` or ``attn_pdrop: 0``.
        weights: whether to read pretrained weights; otherwise all weights are drawn at random.
        pad: number that fills up texts before or after them, in data that do not mark padding by -100: all tokens of
            this number at the beginning and at the end of a text are padding, but those with a label. By default none
            is, and texts are refused that begin or end in several tokens of the model's padding or end; with -100, such
            texts are taken as they are.
        frozen_dtype: dtype of the frozen weights of linear layers and convolutions, in which the layers then compute;
            "bfloat16" takes half the memory of "float32". With ``adapt: lora`` and pretrained ``weights``, "nf4" and
            "int8" quantise linear layers but the head to 4 and 8 bits by bitsandbytes (QLoRA, Dettmers et al., 2023);
            all else is as for "bfloat16".
        checkpointing: whether the forward pass keeps the inputs of the blocks alone, and the backward pass computes the
            rest again (Chen et al., 2016).
        optimizer: function that makes a client's optimizer from the parameters.
        scheduler: function that makes a learning rate schedule from the optimizer; the schedule starts anew every
            round.
        scheduler_interval: period of the schedule: a local "epoch", or a "step" of the optimizer.
        adapting: ``adapt``, which says what of the network trains, and the other arguments of
            :func:`~fl_lightning.models.adapters.adapt_network`. "head" is the last layer, and the tokens' embedding
            if the two share their weight; it does not train beside matrices. By default, these stand beside the layers
            that peft chooses for the model.

    Raises:
        ConfigurationError: there is no such model or setting, or a name or pattern has no layer; in training, a token
            is not in the vocabulary, or a text is longer than the model's positions; in evaluation, texts may be filled
            up, and neither ``pad``, a mask nor labels say so; or, then and on a CPU, labels are other tokens than those
            of their places, as an attention mask in their place is.
    """

    lower_is_better = ("val/loss", "val/perplexity", "test/loss", "test/perplexity")
    higher_is_better = ("val/token_top1", "test/token_top1")
    mean_over = "tokens"

    @later(frozen_dtype="float32", checkpointing=False, pad=None)
    @later(alpha=None, dropout=0.0, rslora=False, dora=False, modules_to_save=())
    def __init__(
        self,
        model: str,
        settings: Mapping[str, Any] | None = None,
        weights: bool = True,
        pad: int | None = None,
        optimizer: OptimizerCallable = lambda params: torch.optim.AdamW(params, lr=5e-4),
        scheduler: LRSchedulerCallable | None = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        frozen_dtype: FrozenWeights = "float32",
        checkpointing: bool = False,
        **adapting: Unpack[Targeted],
    ) -> None:
        super().__init__()
        check_choice("scheduler_interval", scheduler_interval, "epoch", "step")
        self.scheduler_interval = scheduler_interval
        self.optimizer, self.scheduler = optimizer, scheduler
        check_frozen(frozen_dtype, weights, adapting)
        self.network = make_network("CausalLM", model, settings or {}, weights, frozen_dtype)
        downloaded = set(self.network.parameters()) if weights else set()
        usual = usual_targets(self.network)
        adapt_network(self.network, head_of(self.network), lora_trains_head=False, usual=usual, **adapting)
        self.frozen_dtype = make_small(self.network, frozen_dtype, checkpointing)
        self.from_elsewhere = names_of(self, downloaded)
        self.vocabulary: int = self.network.get_input_embeddings().num_embeddings
        self.pad, self.doubtful = pad, doubtful_tokens(self.network.config, self.vocabulary)
        self.network.config.pad_token_id = None  # no token looks at padding, which comes last: it needs no mask
        self.metrics = nn.ModuleDict({stage: self._metrics(f"{stage}/") for stage in ("val", "test")})

    def _metrics(self, prefix: str) -> MetricCollection:
        top1 = MulticlassAccuracy(self.vocabulary, average="micro", ignore_index=NOTHING)
        loss = MeanMetric(nan_strategy="disable")  # a loss that is nan makes the mean nan
        return MetricCollection(
            {"token_top1": top1, "perplexity": Perplexity(ignore_index=NOTHING), "loss": loss}, prefix=prefix
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the token after each of int64 tokens (B, T), from each text's first token on.

        Places without a token, -100, come last: where they stand before a text, the text moves to the front.
        """
        check_form(self.network, tokens)
        (tokens,) = to_front(tokens)
        return logits_of(self.network, self.frozen_dtype, tokens.masked_fill(tokens == NOTHING, 0))

    def predict_next(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return logits (B, T - 1, V) of the second to last tokens of a batch, and their labels (B, T - 1)."""
        tokens, labels = self.tokens_and_labels(batch)
        return self(tokens)[:, :-1], labels[:, 1:]

    def tokens_and_labels(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the tokens (B, T) of a batch, each text from its first place on, and their labels (B, T).

        Both are -100 after the end of a text; the labels are -100, too, where a token is not to be predicted.
        """
        tokens, mask, labels = parts_of(batch)
        tokens = self._marked(tokens, mask, labels)
        if labels is not None:
            check_targets(self.network, tokens, labels)
        tokens, labels = to_front(tokens, tokens if labels is None else labels)
        return tokens, labels.masked_fill(tokens == NOTHING, NOTHING)

    def _marked(self, tokens: Tensor, mask: Tensor | None, labels: Tensor | None) -> Tensor:
        """Return tokens (B, T) with -100 where there is none: where the mask (B, T) is 0, if there is one."""
        if mask is None:
            return marked(self.network, tokens, self.pad, self.doubtful, labels)
        if mask.shape != tokens.shape:
            kind, shapes = self.network.config.model_type, f"{tuple(mask.shape)} for {tuple(tokens.shape)}"
            raise ConfigurationError(f"{kind} expects an attention_mask for each of the input_ids, got {shapes}")
        check_form(self.network, tokens)
        return tokens.masked_fill(mask == 0, NOTHING)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return the mean cross-entropy of a batch's predicted tokens, 0 if there is none, and how many they are."""
        logits, labels = self.predict_next(batch)
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NOTHING, reduction="sum")
        count = (labels != NOTHING).sum()
        return {"loss": total / count.clamp(min=1), "tokens": count}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the ``val/…`` metrics."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the ``test/…`` metrics."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the probabilities (B, V) of the token that follows each text."""
        tokens, mask, _ = parts_of(batch)
        tokens = self._marked(tokens, mask, None)
        last = (tokens != NOTHING).sum(1).clamp(min=1) - 1
        logits = self(tokens)[torch.arange(len(tokens), device=tokens.device), last]
        return logits.softmax(1)  # type: ignore[no-any-return]

    @torch.no_grad()
    def generate(self, prompt: Sequence[int], tokens: int, end: int | None = None) -> tuple[list[int], bool]:
        """Write tokens after a prompt, the most likely one at each place, by transformers' ``generate``.

        The network's own settings of generation hold, but for sampling. The module must be in evaluation mode.

        Args:
            prompt: the prompt's tokens, at least one.
            tokens: largest number of tokens to write; fewer where the network has no more positions.
            end: token after which nothing more is written, beside those that the network's settings name.

        Returns:
            The tokens, without an end; and whether the network wrote one.
        """
        network: Any = self.network
        positions = getattr(network.config, "max_position_embeddings", None)
        most = tokens if positions is None else min(tokens, positions - len(prompt))
        if most < 1:
            return [], False
        named = network.generation_config.eos_token_id
        ends = {end, *(named if isinstance(named, list) else [named])} - {None}
        settings = {"max_new_tokens": most, "do_sample": False, "use_cache": True, "pad_token_id": 0}
        text = torch.tensor([prompt], device=self.device)
        with silent(import_transformers()), computing(self.frozen_dtype, text):
            written = network.generate(
                text, attention_mask=torch.ones_like(text), eos_token_id=sorted(ends) or None, **settings
            )
        answer: list[int] = written[0, len(prompt) :].tolist()
        ended = answer[-1] in ends
        return answer[: len(answer) - ended], ended

    def _evaluate(self, batch: Any, stage: str) -> None:
        logits, labels = self.predict_next(batch)
        metrics: Any = self.metrics[stage]
        losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=NOTHING, reduction="none")
        metrics["loss"].update(losses[labels != NOTHING])
        metrics["perplexity"].update(logits, labels)
        metrics["token_top1"].update(logits.argmax(2), labels)
        for name, metric in metrics.items():
            self.log(name, metric, prog_bar=name.endswith("perplexity"), batch_size=len(labels))

    @override
    def configure_optimizers(self) -> Any:
        return with_schedule(self.optimizer(self.parameters()), self.scheduler, self.scheduler_interval)
