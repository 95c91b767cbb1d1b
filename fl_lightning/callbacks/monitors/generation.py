"""GenerationMonitor: what a language model answers to a few validation prompts."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torchmetrics.text import ROUGEScore
from typing_extensions import override

from fl_lightning import (
    Cohort,
    ConfigurationError,
    FederatedOrchestrator,
    Metric,
    Monitor,
    Server,
    check_at_least,
    is_due,
    log_table,
    save_arrays,
)
from fl_lightning.datamodules import HuggingFace
from fl_lightning.datamodules.files.pretrained import read_pretrained
from fl_lightning.models import CausalLM
from fl_lightning.seeding import isolated


class Answer(NamedTuple):
    """Holds a prompt, the response of the data, the text that a model wrote, and whether it ended by itself."""

    prompt: str
    response: str
    text: str
    ended: bool


class GenerationMonitor(Monitor):
    """Lets the global model answer the first validation prompts, and compares the answers with the responses.

    A prompt is what stands before the last response of a text, as ``columns: [prompt, response]`` or chats of
    :class:`HuggingFace` label it; in data without labels, the first ``given`` tokens of a text. At each place the model
    writes the most likely token, by transformers' ``generate`` with the model's own settings but for sampling, until an
    end. Answers and responses are compared without special tokens and white space around them; prompts are shown with
    theirs.

    ``arrays/generated_<round>.npz`` in the run folder holds ``prompts``, ``responses`` and ``answers`` (n,), texts; the
    report shows them, and so do W&B, TensorBoard and MLflow, as ``generation/answers``. The monitor changes nothing.

    Args:
        prompts: n, the number of prompts, fewer where the validation set has fewer.
        length: largest number of tokens of an answer.
        every: number of rounds from one generation to the next; the last round that ``trainer.max_epochs`` allows has
            one, too.
        given: number of tokens of a prompt, in data without labels.
        tokenizer: name on the hub, or folder, of the tokenizer that turns tokens into texts; by default that of
            :class:`HuggingFace` data. Without any, a text is the tokens' numbers.

    Raises:
        ConfigurationError: an argument is less than 1; the client module is no :class:`CausalLM`; no validation example
            has a prompt and a response.
    """

    metrics = (
        Metric(
            "generation/exact_match",
            "Exact answers",
            "Share of validation prompts that the new global model answers with the response, letter for letter.",
            percent=True,
            better="higher",
            panel="exact answers",
        ),
        Metric(
            "generation/rouge_l",
            "ROUGE-L of answers",
            "Mean F-measure of the longest common subsequence of words of answer and response (Lin, 2004), on lower "
            "case, without punctuation.",
            better="higher",
            panel="ROUGE-L of answers",
        ),
        Metric(
            "generation/ended",
            "Answers that end",
            "Share of answers that end by themselves, within the largest number of tokens.",
            percent=True,
            panel="answers that end",
        ),
    )

    streams = True

    def __init__(
        self,
        prompts: int = 8,
        length: int = 32,
        every: int = 10,
        given: int | None = None,
        tokenizer: str | None = None,
    ) -> None:
        check_at_least(1, prompts=prompts, length=length, every=every, given=1 if given is None else given)
        self.prompts, self.length, self.every = prompts, length, every
        self.given, self.tokenizer = given, tokenizer

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        client, data = pl_module.client, trainer.datamodule  # type: ignore[attr-defined]  # set outside of __init__
        if not isinstance(client, CausalLM):
            raise ConfigurationError(
                f"GenerationMonitor lets a CausalLM write, got {type(client).__name__}: leave it out"
            )
        name = self.tokenizer or (data.tokenizer if isinstance(data, HuggingFace) else None)
        self._cut = None if name is None else read_pretrained("AutoTokenizer", name)
        assert isinstance(pl_module, FederatedOrchestrator)
        with isolated(pl_module.device):
            if next(self._pairs(pl_module), None) is None:
                raise ConfigurationError(
                    "GenerationMonitor needs validation examples with a prompt and a response, got none: let "
                    "data.columns name the columns of prompts and of responses, or set given, the number of tokens of "
                    "a prompt"
                )

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if not is_due(orchestrator, self.every):
            return
        prompts, responses, answers, ended = zip(*self._write(orchestrator), strict=True)
        orchestrator.log_round("generation/exact_match", fmean(map(str.__eq__, answers, responses)))
        orchestrator.log_round("generation/rouge_l", rouge_l(answers, responses))
        orchestrator.log_round("generation/ended", fmean(ended))
        columns = {"prompts": prompts, "responses": responses, "answers": answers}
        save_arrays(orchestrator, f"generated_{cohort.round}", **columns)
        log_table(orchestrator, "generation/answers", columns, cohort.round)

    def _write(self, orchestrator: Server) -> list[Answer]:
        """Let the global model answer the first prompts."""
        client = orchestrator.client
        assert isinstance(client, CausalLM)
        end = None if self._cut is None else self._cut.eos_token_id
        precision = orchestrator.trainer.precision_plugin
        answers = []
        with orchestrator.server_side("generation"), orchestrator.validating(), precision.val_step_context():
            for prompt, response in islice(self._pairs(orchestrator), self.prompts):
                tokens, ended = client.generate(prompt, self.length, end)
                asked = self._text(prompt, special=True)  # the roles of a chat are special tokens
                answers.append(Answer(asked, self._text(response), self._text(tokens), ended))
        return answers

    def _pairs(self, orchestrator: Server) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the tokens of the prompts and of the responses in the validation set."""
        client = orchestrator.client
        assert isinstance(client, CausalLM)
        for batch in map(orchestrator.prepare_batch, orchestrator.data.val_dataloader()):
            yield from prompts_and_responses(*client.tokens_and_labels(batch), self.given)

    def _text(self, tokens: Sequence[int], special: bool = False) -> str:
        if self._cut is None:
            return " ".join(map(str, tokens))
        return str(self._cut.decode(tokens, skip_special_tokens=not special)).strip()


def prompts_and_responses(tokens: Tensor, labels: Tensor, given: int | None) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the tokens of the prompt and of the response of each text that has both.

    The response is the last tokens in a row that the labels name, the prompt is all that stands before them. Where
    these are the text's first tokens, as without labels, the prompt is the first ``given`` ones, if that is set.

    >>> import torch
    >>> from fl_lightning.callbacks.monitors.generation import prompts_and_responses
    >>> tokens, labels = torch.tensor([[5, 6, 7, 8, -100]]), torch.tensor([[-100, 6, -100, 8, -100]])
    >>> list(prompts_and_responses(tokens, labels, given=None))
    [([5, 6, 7], [8])]
    >>> list(prompts_and_responses(tokens, tokens, given=1))
    [([5], [6, 7, 8])]

    Args:
        tokens: int64 (B, T), each text from the first place on, -100 after its end.
        labels: int64 (B, T), -100 where a token is not to be predicted.
        given: number of tokens of a prompt, in texts that begin with their response.
    """
    for text, targets in zip(tokens, labels, strict=True):
        places = (targets >= 0).nonzero().flatten()
        if not len(places):
            continue
        gaps = (places.diff() > 1).nonzero().flatten()
        start, stop = int(places[int(gaps[-1]) + 1 if len(gaps) else 0]), int(places[-1]) + 1
        if start == 0:  # no prompt stands before the response
            start = stop if given is None else given
        if start < stop:
            yield text[:start].tolist(), text[start:stop].tolist()


def rouge_l(answers: Sequence[str], responses: Sequence[str]) -> float:
    """Compute the mean ROUGE-L F-measure of answers, in [0, 1], as torchmetrics does, with the letters of any alphabet.

    >>> from fl_lightning.callbacks.monitors.generation import rouge_l
    >>> rouge_l(["The cat sat."], ["the cat sat down"])  # three words of three, and of four
    0.8571428656578064
    """
    score = ROUGEScore(rouge_keys="rougeL", normalizer=lambda text: re.sub(r"[\W_]+", " ", text.lower()))
    score.update(list(answers), list(responses))  # it takes a tuple for something else
    return float(score.compute()["rougeL_fmeasure"])
