"""Language models of transformers: CausalLM trains one to predict the next token, TextTransformer classifies texts."""

import copy
from collections.abc import Collection, Mapping, Sequence
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
from fl_lightning.datamodules.files.pretrained import import_transformers, one_line, read_pretrained, silent
from fl_lightning.datamodules.files.quantized import QUANTIZED, FrozenWeights, check_frozen, names_of, reading, settle
from fl_lightning.datamodules.tables.tokens import NOTHING
from fl_lightning.errors import ConfigurationError, check_at_least, check_choice, nearest
from fl_lightning.later import later
from fl_lightning.models.adapters import Targeted, adapt_network, computing, halve_frozen, keep_frozen
from fl_lightning.models.classifier import with_schedule
from fl_lightning.models.text import check_targets, parts_of, to_front


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


def make_network(
    task: str, model: str, settings: Mapping[str, Any], weights: bool, frozen_dtype: FrozenWeights, **more: Any
) -> Any:
    """Make a network of transformers.

    Args:
        task: end of the name of transformers' class ``AutoModelFor…``.
        model: name on the hub, folder, or, without weights, type.
        settings: settings of the network's config.
        weights: whether to read pretrained weights.
        frozen_dtype: dtype in which all weights are made: "bfloat16", or torch's default, from which "nf4" and "int8"
            are quantised.
        more: settings that every config has.

    Raises:
        ConfigurationError: there is no such model or setting, the settings do not fit one another, or a model is to be
            quantised that already is.
    """
    transformers = import_transformers()
    maker = f"AutoModelFor{task}"
    dtype = torch.bfloat16 if frozen_dtype == "bfloat16" else torch.get_default_dtype()
    if weights:
        config = read_pretrained("AutoConfig", model)
        _check_settings(config, settings)
        config = read_pretrained("AutoConfig", model, **settings, **more)
        quantizing: dict[str, Any] = {}
        if frozen_dtype in QUANTIZED:
            if getattr(config, "quantization_config", None) is not None:
                raise ConfigurationError(f"frozen_dtype: {model} is quantised already: set frozen_dtype to float32")
            with silent(transformers), torch.device("meta"):
                parts = head_of(getattr(transformers, maker).from_config(config))
            quantizing = reading(transformers, frozen_dtype, parts)
        network = read_pretrained(maker, model, config=config, dtype=dtype, **quantizing)
        if quantizing:
            settle(network, frozen_dtype)
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
    network.config_as_made = copy.deepcopy(network.config)
    network.config.use_cache = False  # of what earlier tokens gave: for writing texts, not for training
    return network


def make_small(network: Any, frozen_dtype: FrozenWeights, checkpointing: bool) -> FrozenWeights:
    """Let a network of transformers take less memory, in place; returns the dtype of its frozen weights.

    Raises:
        ConfigurationError: no weight is frozen for "bfloat16", or transformers has no checkpointing for the network.
    """
    if frozen_dtype == "nf4" or frozen_dtype == "int8":
        halve_frozen(network)  # what is not quantised
    else:
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
