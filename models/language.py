"""Language models of transformers: CausalLM trains one to predict the next token, TextTransformer classifies texts."""

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
from fl_lightning.datamodules.files.pretrained import (
    import_transformers,
    one_line,
    padding_of,
    read_pretrained,
    silent,
)
from fl_lightning.errors import ConfigurationError, check_at_least, check_choice, nearest
from fl_lightning.later import later
from fl_lightning.models.adapters import Adapt, FrozenDtype, computing, keep_frozen
from fl_lightning.models.adapters import adapt as adapt_network
from fl_lightning.models.classifier import with_schedule

NOTHING = -100  # the label of a token that is not predicted, in torch and in transformers


@picklable_defaults
class CausalLM(LightningModule):
    """Trains a language model to predict the next token; logs ``val/loss``, ``val/perplexity``, ``val/top1``.

    Batches are int64 tokens (B, T), or pairs of tokens and labels (B, T): the token at each place, and -100 where the
    token is not to be predicted. The second of a pair may also be a class (B,), which is left out. Without labels,
    padding is not predicted. Texts are filled up at their end. The loss is the mean over all predicted tokens of the
    batch, and ``test/…`` the same as ``val/…``.

    ``training_step`` returns the loss alone: rules that use the classes or features of examples (FedLC, FedRS, FedNTD,
    FedSOL, FocalLoss, FedRoD, FedProto, MOON, FedDecorr) do not apply.

    Args:
        model: name on the hub, or folder, of a pretrained model; without ``weights``, a type of transformers, such as
            ``gpt2``.
        settings: settings of the model's config, such as ``n_layer: 2`` or ``attn_pdrop: 0``.
        weights: whether to read pretrained weights; otherwise all weights are drawn at random.
        adapt: part of the model that trains. "full" trains all parameters; "head" the last layer, and the tokens'
            embedding if the two share their weight; "lora" thin matrices beside frozen weights.
        rank: rank of the matrices.
        targets: names or patterns of the linear layers that get matrices; by default peft's choice for the model.
        freeze: patterns of parameters that stay as they are, such as ``*.lora_A.*`` (FFA-LoRA, Sun et al., 2024).
        pad: number of the token that fills up texts; by default the model's padding token, that of a text's end if
            there is none, else 0.
        frozen_dtype: dtype of the frozen weights of linear layers and convolutions, in which the layers then compute;
            "bfloat16" takes half the memory of "float32".
        checkpointing: whether the forward pass keeps the inputs of the blocks alone, and the backward pass computes the
            rest again (Chen et al., 2016).
        optimizer: function that makes a client's optimizer from the parameters.
        scheduler: function that makes a learning rate schedule from the optimizer; the schedule starts anew every
            round.
        scheduler_interval: period of the schedule: a local "epoch", or a "step" of the optimizer.

    Raises:
        ConfigurationError: there is no such model or setting, or a name or pattern has no layer; in training, a token
            is not in the vocabulary, or a text is longer than the model's positions.
    """

    @later(frozen_dtype="float32", checkpointing=False)
    def __init__(
        self,
        model: str,
        settings: Mapping[str, Any] | None = None,
        weights: bool = True,
        adapt: Adapt = "full",
        rank: int = 8,
        targets: Sequence[str] = (),
        freeze: Sequence[str] = (),
        pad: int | None = None,
        optimizer: OptimizerCallable = lambda params: torch.optim.AdamW(params, lr=5e-4),
        scheduler: LRSchedulerCallable | None = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        frozen_dtype: FrozenDtype = "float32",
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        check_choice("scheduler_interval", scheduler_interval, "epoch", "step")
        self.scheduler_interval = scheduler_interval
        self.optimizer, self.scheduler = optimizer, scheduler
        self.network = make_network("CausalLM", model, settings or {}, weights, frozen_dtype)
        downloaded = set(self.network.parameters()) if weights else set()
        head = head_of(self.network) if adapt == "head" else ()
        adapt_network(self.network, adapt, head, rank, targets or usual_targets(self.network), freeze)
        self.frozen_dtype = make_small(self.network, frozen_dtype, checkpointing)
        self.from_elsewhere = [name for name, own in self.named_parameters() if own in downloaded]
        self.vocabulary: int = self.network.get_input_embeddings().num_embeddings
        self.pad = padding_of(self.network.config, self.vocabulary) if pad is None else pad
        self.network.config.pad_token_id = None  # no token looks at padding, which comes last: it needs no mask
        self.metrics = nn.ModuleDict({stage: self._metrics(f"{stage}/") for stage in ("val", "test")})

    def _metrics(self, prefix: str) -> MetricCollection:
        top1 = MulticlassAccuracy(self.vocabulary, average="micro", ignore_index=NOTHING)
        loss = MeanMetric(nan_strategy="disable")  # a loss that is nan makes the mean nan
        return MetricCollection(
            {"top1": top1, "perplexity": Perplexity(ignore_index=NOTHING), "loss": loss}, prefix=prefix
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the token after each of int64 tokens (B, T)."""
        return logits_of(self.network, self.frozen_dtype, tokens)

    def predict_next(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return logits (B, T - 1, V) of the second to last tokens of a batch, and their labels (B, T - 1)."""
        tokens, *others = batch if isinstance(batch, list | tuple) else [batch]
        labels = tokens.masked_fill(tokens == self.pad, NOTHING)
        if others and others[0].ndim == 2:
            labels = others[0]
        return self(tokens)[:, :-1], labels[:, 1:]

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return the mean cross-entropy of a batch's predicted tokens as ``loss``; 0 if no token is predicted."""
        logits, labels = self.predict_next(batch)
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NOTHING, reduction="sum")
        return {"loss": total / (labels != NOTHING).sum().clamp(min=1)}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the ``val/…`` metrics."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the ``test/…`` metrics."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the probabilities (B, V) of the token that follows each text."""
        tokens = batch[0] if isinstance(batch, list | tuple) else batch
        last = (tokens != self.pad).sum(1).clamp(min=1) - 1
        logits = self(tokens)[torch.arange(len(tokens), device=tokens.device), last]
        return logits.softmax(1)  # type: ignore[no-any-return]

    def _evaluate(self, batch: Any, stage: str) -> None:
        logits, labels = self.predict_next(batch)
        metrics: Any = self.metrics[stage]
        losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=NOTHING, reduction="none")
        metrics["loss"].update(losses[labels != NOTHING])
        metrics["perplexity"].update(logits, labels)
        metrics["top1"].update(logits.argmax(2), labels)
        for name, metric in metrics.items():
            self.log(name, metric, prog_bar=name.endswith("perplexity"), batch_size=len(labels))

    @override
    def configure_optimizers(self) -> Any:
        return with_schedule(self.optimizer(self.parameters()), self.scheduler, self.scheduler_interval)


class TextTransformer(nn.Module):
    """Any network of transformers that classifies texts, for :class:`ImageClassifier`, which trains it.

    Args:
        model, settings, weights, rank, targets, freeze, pad, frozen_dtype, checkpointing: as for :class:`CausalLM`.
        num_classes: number of outputs; the head that gives them is drawn at random, even with ``weights``.
        adapt: part of the network that trains. "full" trains all parameters, "head" the head, "lora" the head and thin
            matrices beside frozen weights.

    Raises:
        ConfigurationError: as :class:`CausalLM`.
    """

    @later(frozen_dtype="float32", checkpointing=False)
    def __init__(
        self,
        model: str,
        num_classes: int = 2,
        settings: Mapping[str, Any] | None = None,
        weights: bool = True,
        adapt: Adapt = "full",
        rank: int = 8,
        targets: Sequence[str] = (),
        freeze: Sequence[str] = (),
        pad: int | None = None,
        frozen_dtype: FrozenDtype = "float32",
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        check_at_least(1, num_classes=num_classes)
        self.network = make_network(
            "SequenceClassification", model, settings or {}, weights, frozen_dtype, num_labels=num_classes
        )
        targets = targets or usual_targets(self.network)
        head = head_of(self.network)
        in_head = {own for part in head for own in self.network.get_submodule(part).parameters()}
        downloaded = set(self.network.parameters()) - in_head if weights else set()
        adapt_network(self.network, adapt, head, rank, targets, freeze)
        self.frozen_dtype = make_small(self.network, frozen_dtype, checkpointing)
        self.from_elsewhere = [name for name, own in self.named_parameters() if own in downloaded]
        vocabulary = self.network.get_input_embeddings().num_embeddings
        self.pad = padding_of(self.network.config, vocabulary) if pad is None else pad
        self.network.config.pad_token_id = self.pad  # some networks look for the last token before it

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, num_classes) of int64 tokens (B, T)."""
        return logits_of(self.network, self.frozen_dtype, tokens, attention_mask=(tokens != self.pad).long())


def make_network(
    task: str, model: str, settings: Mapping[str, Any], weights: bool, frozen_dtype: FrozenDtype, **more: Any
) -> Any:
    """Make a network of transformers.

    Args:
        task: end of the name of transformers' class ``AutoModelFor…``.
        model: name on the hub, folder, or, without weights, type.
        settings: settings of the network's config.
        weights: whether to read pretrained weights.
        frozen_dtype: dtype in which all weights are made: "bfloat16", or torch's default.
        more: settings that every config has.

    Raises:
        ConfigurationError: there is no such model or setting, or the settings do not fit one another.
    """
    transformers = import_transformers()
    maker = f"AutoModelFor{task}"
    dtype = torch.bfloat16 if frozen_dtype == "bfloat16" else torch.get_default_dtype()
    if weights:
        config = read_pretrained("AutoConfig", model)
        _check_settings(config, settings)
        config = read_pretrained("AutoConfig", model, **settings, **more)
        network = read_pretrained(maker, model, config=config, dtype=dtype)
        network.train()  # transformers gives it for evaluation, without dropout
    else:
        if model not in transformers.CONFIG_MAPPING:
            near = nearest(model, transformers.CONFIG_MAPPING) or "gpt2"
            raise ConfigurationError(
                f"expected a type of transformers for weights: false, such as {near}, got {model!r}: correct the type, "
                "or set weights to true to read a model of this name"
            )
        _check_settings(transformers.AutoConfig.for_model(model), settings)
        try:
            with silent(transformers):
                config = transformers.AutoConfig.for_model(model, **settings, **more)
                network = getattr(transformers, maker).from_config(config, dtype=dtype)
        except Exception as error:  # of many classes
            raise ConfigurationError(
                f"transformers makes no {maker} of type {model} with {dict(settings)}: {one_line(error)}"
            ) from None
    network.config.use_cache = False  # of what earlier tokens gave: for writing texts, not for training
    return network


def make_small(network: Any, frozen_dtype: FrozenDtype, checkpointing: bool) -> FrozenDtype:
    """Let a network of transformers take less memory, in place; returns the dtype of its frozen weights.

    Raises:
        ConfigurationError: no weight is frozen for "bfloat16", or transformers has no checkpointing for the network.
    """
    keep_frozen(network, frozen_dtype)
    if checkpointing:
        if not network.supports_gradient_checkpointing:
            kind = network.config.model_type
            raise ConfigurationError(f"transformers has no checkpointing for {kind}: set checkpointing to false")
        enable = getattr(network, "activation_checkpointing_enable", network.gradient_checkpointing_enable)
        enable({"use_reentrant": False})  # else frozen first layers would leave the adapters without gradients
    return frozen_dtype


def _check_settings(config: Any, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a config does not have; transformers keeps them, and does nothing."""
    known = {*vars(config), *config.attribute_map}
    for name in settings:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(sorted(vars(config)))}"
            raise ConfigurationError(f"settings: {type(config).__name__} has no {name}: {hint}")


def head_of(network: Any) -> list[str]:
    """Name the parts of a network of transformers that stand around its base model."""
    return [name for name, _ in network.named_children() if name != network.base_model_prefix]


def usual_targets(network: Any) -> Sequence[str]:
    """Name the layers that peft gives adapters by default; empty if peft is not installed, or has no choice."""
    try:
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as CHOICES
    except ImportError:
        return ()
    chosen: Sequence[str] = CHOICES.get(network.config.model_type, ())
    return chosen


def logits_of(network: Any, frozen_dtype: FrozenDtype, tokens: Tensor, **inputs: Tensor) -> Tensor:
    """Return the logits of a network of transformers, float32 if its frozen weights are in bfloat16.

    Raises:
        ConfigurationError: the tokens are not int64 (B, T), one is not in the vocabulary, or a text is too long.
    """
    name = network.config.model_type
    if tokens.dtype != torch.int64 or tokens.ndim != 2:
        raise ConfigurationError(f"{name} expects int64 tokens (B, T), got {tokens.dtype} {tuple(tokens.shape)}")
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
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ConfigurationError(
            f"{network.config.model_type} has the tokens 0 to {vocabulary - 1}, got {int(tokens.min())} to "
            f"{int(tokens.max())}: set vocab_size in settings, or cut the texts by this model's tokenizer"
        )
