"""Secure aggregation: the server gets the sum of what a set of sites send, and no summand."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from fl_lightning.engine.policy import Policy
from fl_lightning.engine.round import Outgoing
from fl_lightning.engine.rules.callback import SERVER_HOOKS, FederatedCallback, Monitor, streams
from fl_lightning.engine.rules.declared import stands
from fl_lightning.engine.sites.facts import LEAST
from fl_lightning.engine.sites.messages import NAMES, NORMS, Incoming, one_line
from fl_lightning.engine.sites.secure.fixed import FixedPoint
from fl_lightning.engine.states.sent import MARK
from fl_lightning.engine.updates.cohort import ClientResult
from fl_lightning.errors import ConfigurationError, TrainingError

LOSS = "train/loss"
WORD = 8  # bytes
COUNTER = "num_batches_tracked"
TOLD: dict[str, type] = {
    "metrics": dict,
    "undefined": list,
    "dropped": list,
    "shown": dict,
    "counts": dict,
    "stays": list,
}  # what is told in the open
Kind = Literal["mean", "count", "same"]


def check_secure(
    callbacks: Sequence[FederatedCallback],
    settings: Mapping[str, Any],
    sites: Mapping[str, Sequence[int]],
    scaled: bool,
) -> None:
    """Refuse what needs more than the sum of a round's updates.

    Args:
        callbacks: the run's federated callbacks.
        settings: the orchestrator's arguments, by name.
        sites: the clients of each site.
        scaled: whether there is a GradScaler, as with precision 16-mixed.

    Raises:
        ConfigurationError: there is such a rule, monitor or setting, which the message names.
    """
    reasons = {}
    for callback in callbacks:
        reason = _needs_more(callback)
        if reason is not None:
            reasons[type(callback).__name__] = reason
    if reasons:
        refused = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
        raise ConfigurationError(
            f"{refused}, but secure aggregation gives the server the sum over all clients alone: leave "
            f"{', '.join(reasons)} out, or set network.secure_aggregation to false"
        )
    if settings["max_update_norm"] is not None:
        raise ConfigurationError(
            f"model.max_update_norm {settings['max_update_norm']} compares the norms of single updates, but secure "
            "aggregation gives the server their sum alone: leave it out"
        )
    if scaled:
        raise ConfigurationError(
            "precision 16-mixed has a loss scale for each client, but secure aggregation gives the server sums alone: "
            "use bf16-mixed"
        )
    if len(sites) < LEAST:
        raise ConfigurationError(f"secure aggregation sums over at least {LEAST} sites, got {len(sites)}")
    several = [site for site, clients in sites.items() if len(clients) != 1]
    if several:
        raise ConfigurationError(f"secure aggregation expects one client at each site, got others at {several[0]}")


def has_scaler(trainer: Trainer) -> bool:
    """Tell whether each client has a GradScaler."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None


def _needs_more(callback: FederatedCallback) -> str | None:
    """Say what a callback needs besides the sum of updates; None if it declares that the sum will do."""
    if callback.needs_each_client is not None:
        return callback.needs_each_client
    if not streams(callback):
        return "reads single updates"
    if read := callback.reads - {"examples"}:  # which are read where they lie
        return f"reads the {', '.join(sorted(read))} of each client"
    for hook in () if isinstance(callback, Monitor) else SERVER_HOOKS:
        holder = next(kind for kind in type(callback).__mro__ if hook in vars(kind))
        is_own = holder.__module__.partition(".")[0] == "fl_lightning"
        if not is_own and not stands(callback, "reads", [hook]):
            return f"may read values of each client in {hook} (set reads in its class, to frozenset() if it does not)"
    return None


class HasPolicy(Protocol):
    """Describes the orchestrator to what sums: its module, and the weights of the clients."""

    client: Any
    data: Any
    buffer_names: list[str]
    policy: Policy


class Layout:
    """Says where in a vector of words each number of an answer is: update, buffers, number of examples, metrics.

    Buffers of floating-point numbers are averaged, as distances from the value that was sent. A BatchNorm counts its
    batches in an integer, of which the largest is taken: this number is told in the open. Other integers, and frozen
    parameters, must stay as they are.

    Args:
        server: the orchestrator, at the server or at a site.
        asked: the model and the states that were sent.

    Attributes:
        weights: (N,) weights of all clients in the sum of updates.
        updates: form of the updates in the sum.
        others: form of all other numbers, which are weighted by numbers of examples.
        names: the names of the buffers.
        kinds: the kind of each buffer.
        counted: the names of the buffers that count batches.
        length: number of words of all but the metrics.
    """

    def __init__(self, server: HasPolicy, asked: Outgoing) -> None:
        sizes = server.data.sizes.tolist()
        self.weights = server.policy.shares_of_sizes(sizes)
        self.updates = FixedPoint.of(len(sizes), float(self.weights.max()))
        self.others = FixedPoint.of(len(sizes), max(sizes))
        self.names = server.buffer_names
        counters = _counters(server.client)
        frozen = {name for name, parameter in server.client.named_parameters() if not parameter.requires_grad}
        self.kinds: list[Kind] = []
        for name, value in zip(self.names, asked.buffers, strict=True):
            if value is not None and name in counters:
                self.kinds.append("count")
            elif value is None or name in frozen or not _is_averaged(value):
                self.kinds.append("same")
            else:
                self.kinds.append("mean")
        self.counted = {name for name, kind in zip(self.names, self.kinds, strict=True) if kind == "count"}
        self.length = asked.params.numel()
        for kind, value in zip(self.kinds, asked.buffers, strict=True):
            if kind == "mean" and value is not None:
                self.length += _flat(value).numel()
        self.length += 1  # the number of examples


def _counters(module: nn.Module) -> set[str]:
    """Name the integers in which normalizations of torch count batches."""
    names: set[str] = set()
    for path, part in module.named_modules():
        if isinstance(part, NORMS) and part.num_batches_tracked is not None:
            names.add(f"{path}.{COUNTER}" if path else COUNTER)
    return names


def _is_averaged(value: Tensor) -> bool:
    return value.layout is torch.strided and value.numel() > 0 and (value.is_floating_point() or value.is_complex())


def _flat(value: Tensor) -> Tensor:
    """Return the numbers (n,) of a buffer; a complex one has two for each entry."""
    return (torch.view_as_real(value) if value.is_complex() else value).reshape(-1)


class Veil(Protocol):
    """Describes the masks of a site (:class:`SiteMasks`) to what runs without the package cryptography."""

    def start(self, fit: str, sizes: Sequence[int]) -> None:
        """Draw keys for a fit, unless that fit is going on; the server has told the sizes of all clients."""

    @property
    def shown(self) -> Mapping[str, str]:
        """The site's signed public key, as it shows it to the others."""

    def begin(self, asked: Outgoing) -> str:
        """Take note of the set of sites that a round names; return why the site does not answer, or nothing.

        Raises:
            TrainingError: a site's public key is not its own.
        """

    def hide(self, words: Tensor, asked: Outgoing) -> None:
        """Add the masks of a round to words, in place.

        Raises:
            TrainingError: the answer comes too late for its round.
        """


def answer_for_sum(answer: Incoming, asked: Outgoing, server: HasPolicy, say: Callable[[str], None]) -> Incoming:
    """Turn a client's answer into words that can be summed, and what is told in the open.

    Args:
        answer: the answer.
        asked: the model and the states that were sent to the client.
        server: the orchestrator at the site.
        say: is called with a line for each metric that cannot be summed.

    Raises:
        TrainingError: a number is too large or not finite.
        ConfigurationError: the client sends more than sums are made of.
    """
    result = answer.result
    if result is None or answer.model is None:
        return answer
    if result.vectors:
        raise ConfigurationError(
            f"a rule sends {', '.join(sorted(result.vectors))} of each client, but secure aggregation gives the server "
            "sums alone: leave the rule out"
        )
    layout = Layout(server, asked)
    update = answer.model if answer.less else answer.model - asked.params.to(answer.model)
    parts = [layout.updates.encode(update, float(layout.weights[answer.client]))]
    counts: dict[str, int] = {}
    for name, kind, before, after in zip(layout.names, layout.kinds, asked.buffers, result.buffers, strict=True):
        if kind == "same":
            _check_same(name, before, after)
            continue
        assert before is not None
        if after is None or after.shape != before.shape or after.dtype != before.dtype:
            raise ConfigurationError(f"training changes the form of the buffer {name}, which sites sum: let it stay")
        if kind == "count":
            counts[name] = int(after)
            continue
        old = _flat(before.cpu()).double()
        new = _flat(after.cpu()).double()
        parts.append(layout.others.encode(torch.where(new == old, 0.0, new - old), result.num_samples))
    parts.append(torch.tensor([result.num_samples]))
    words, told = _metrics_for_sum(result, layout.others, say)
    told |= {"counts": counts, "stays": [list(key) for key in result.stays]}
    return Incoming(answer.client, answer.number, model=torch.cat([*parts, words]), told=told)


def _check_same(name: str, before: Tensor | None, after: Tensor | None) -> None:
    """Refuse a change in what is not averaged."""
    if before is None and after is None:
        return
    if before is None or after is None or before.shape != after.shape or not torch.equal(before.cpu(), after.cpu()):
        raise ConfigurationError(
            f"training changes {name}, of which no mean is made (integers, frozen parameters, empty buffers): keep it "
            "at the site by LocalPart, or leave secure aggregation out"
        )


def _metrics_for_sum(
    result: ClientResult, form: FixedPoint, say: Callable[[str], None]
) -> tuple[Tensor, dict[str, Any]]:
    """Encode a client's loss and metrics; a random word stands for one that is not defined, so that no sum of it is.

    A sum of the others would be a single client's value where only one client has it.
    """
    words: list[Tensor] = []
    ways: dict[str, str] = {}
    undefined: list[str] = []
    dropped: list[str] = []
    for name, value in sorted({LOSS: result.loss, **result.metrics}.items()):
        way = result.reductions.get(name, "mean")
        if way not in ("mean", "sum"):
            dropped.append(name)
            say(f"{name} is not sent: its {way} over clients is no sum")
            continue
        ways[name] = way
        try:
            weight = result.num_samples if way == "mean" else 1
            words.append(form.encode(torch.tensor([value], dtype=torch.float64), weight))
        except TrainingError:
            undefined.append(name)
            words.append(torch.tensor([secrets.randbits(64) - 2**63]))
            if not math.isnan(value):
                say(f"{name} is not sent: {value:g} is too large to be summed")
    told = {"metrics": ways, "undefined": undefined, "dropped": dropped}
    told["shown"] = {name: shown for name, shown in result.shown.items() if name in ways}
    return torch.cat(words) if words else torch.zeros(0, dtype=torch.int64), told


@dataclass(frozen=True)
class Total:
    """Holds what the server learns of a round.

    Attributes:
        update: (P,) the weighted mean of the updates.
        weights: (K,) the clients' weights in it.
        results: for each client of the set, its number of examples, and the means over the set of all else.
        dropped: names of metrics that have no sum.
    """

    update: Tensor
    weights: Tensor
    results: list[ClientResult]
    dropped: list[str]


class Sum:
    """Adds up the answers of a round's set of clients.

    Args:
        server: the orchestrator.
        asked: the models and the states that were sent, by client.
    """

    def __init__(self, server: HasPolicy, asked: Mapping[int, Outgoing]) -> None:
        self._server = server
        self._asked = dict(asked)
        first = next(iter(asked.values()))
        self._layout = Layout(server, first)
        self._first = first
        self._words = torch.zeros(self._layout.length, dtype=torch.int64)
        self._tails: list[Tensor] = []  # the words of metrics, of each site
        self._told: dict[int, Mapping[str, Any]] = {}

    def add(self, incoming: Incoming) -> None:
        """Add an answer.

        Raises:
            TrainingError: the answer does not fit.
        """
        words, told = incoming.model, incoming.told
        if words is None or told is None:
            raise TrainingError("expected an answer that can be summed, got another one")
        check_told(told, self._asked[incoming.client])
        if set(told["counts"]) != self._layout.counted:
            raise TrainingError("expected the counts of the module's normalizations, got others")
        expected = self._layout.length + len(told["metrics"])
        if words.dtype != torch.int64 or words.shape != (expected,):
            raise TrainingError(f"expected {expected} words, got {words.dtype} {tuple(words.shape)}")
        self._words += words[: self._layout.length]
        self._tails.append(words[self._layout.length :])
        self._told[incoming.client] = told

    def named_by(self, incoming: Incoming) -> ClientResult:
        """Return a result with the names that an answer tells in the open, and no value."""
        told = self._told[incoming.client]
        return ClientResult(
            client=incoming.client,
            num_samples=0,
            num_steps=0,
            loss=math.nan,
            normalizer=0.0,
            metrics={name: math.nan for name in (*told["metrics"], *told["dropped"]) if name != LOSS},
            shown={name: how for name, how in told["shown"].items() if name != LOSS},
            stays=self._marks(told),
        )

    def _marks(self, told: Mapping[str, Any]) -> dict[tuple[str, str], Tensor]:
        return {(rule, name): torch.tensor(self._first.number) for rule, name in told["stays"]}

    def total(self) -> Total:
        """Read the sum, once all have answered.

        Raises:
            TrainingError: the masks have not gone, since a site has used others.
        """
        layout = self._layout
        clients = sorted(self._told)
        sizes = [int(self._server.data.sizes[client]) for client in clients]
        examples = sum(sizes)
        if int(self._words[-1]) != examples:
            raise TrainingError("the masks of the sites do not add up to zero: one has answered for another set or key")
        weights = layout.weights[clients]
        params = self._first.params
        size = params.numel()
        update = (layout.updates.decode(self._words[:size]) / float(weights.sum())).to(params)
        buffers = self._mean_buffers(self._words[size:-1], examples)
        metrics, shown, dropped = self._metrics(examples)
        loss = metrics.pop(LOSS, math.nan)
        results: list[ClientResult] = []
        for client, count in zip(clients, sizes, strict=True):
            told = self._told[client]
            results.append(
                ClientResult(
                    client=client,
                    num_samples=count,
                    num_steps=0,  # nobody reads what is of a single client, see check_secure
                    loss=loss,
                    normalizer=0.0,
                    buffers=buffers,
                    metrics=metrics,
                    shown=shown,
                    stays=self._marks(told),
                    upload_bytes=WORD * size,
                )
            )
        return Total(update, weights, results, dropped)

    def _mean_buffers(self, words: Tensor, examples: int) -> list[Tensor | None]:
        """Return the mean of each buffer that is averaged, the largest count, and all others as they were."""
        numbers = self._layout.others.decode(words) / examples
        merged: list[Tensor | None] = []
        start = 0
        for name, kind, before in zip(self._layout.names, self._layout.kinds, self._first.buffers, strict=True):
            if kind == "count" and before is not None:
                merged.append(torch.full_like(before, max(told["counts"][name] for told in self._told.values())))
            elif kind == "mean" and before is not None:
                flat = _flat(before)
                change = numbers[start : start + flat.numel()]
                start += flat.numel()
                merged.append(before if not change.any() else _moved(before, change))
            else:
                merged.append(before)
        return merged

    def _metrics(self, examples: int) -> tuple[dict[str, float], dict[str, dict[str, bool]], list[str]]:
        """Return the metrics that all sites of the set have, how they are shown, and the names of the others."""
        told = list(self._told.values())
        ways = told[0]["metrics"]
        without = {name for own in told for name in (*own["undefined"], *own["dropped"])}
        if any(own["metrics"] != ways for own in told):  # what stands where is not the same
            return {}, {}, sorted(without.union(*(own["metrics"] for own in told)))
        sums = self._layout.others.decode(torch.stack(self._tails).sum(0)).tolist()
        metrics: dict[str, float] = {}
        shown: dict[str, dict[str, bool]] = {}
        for own in told:
            shown |= own["shown"]
        for (name, way), value in zip(ways.items(), sums, strict=True):
            if name not in without:
                metrics[name] = value / examples if way == "mean" else value
        return metrics, {name: how for name, how in shown.items() if name in metrics}, sorted(without)


def _moved(before: Tensor, change: Tensor) -> Tensor:
    """Return a buffer that is moved by a change of its numbers (n,), float64 on the CPU."""
    moved = _flat(before.cpu()).double() + change
    if before.is_complex():
        return torch.view_as_complex(moved.view(*before.shape, 2)).to(before)
    return moved.view(before.shape).to(before)


def check_told(told: Any, asked: Outgoing) -> None:
    """Refuse what a site would not tell in the open.

    Raises:
        TrainingError: something is missing, too much, or of another kind.
    """
    if not isinstance(told, Mapping) or set(told) != set(TOLD):
        raise TrainingError(f"expected a site to tell {', '.join(TOLD)}, got {one_line(told)}")
    for name, kind in TOLD.items():
        if not isinstance(told[name], kind) or len(told[name]) > NAMES:
            raise TrainingError(f"expected a {kind.__name__} of {name}, got {one_line(told[name])}")
    ways, shown = told["metrics"], told["shown"]
    if not all(way in ("mean", "sum") for way in ways.values()):
        raise TrainingError(f"expected metrics that are means or sums, got {one_line(ways)}")
    if list(ways) != sorted(ways) or not set(shown) <= set(ways):
        raise TrainingError("expected metrics in the order of their names, and no others to be shown")
    for how in shown.values():
        if not isinstance(how, dict) or not all(type(value) is bool for value in how.values()):
            raise TrainingError(f"expected True or False of a metric that is shown, got {one_line(how)}")
    if not all(type(name) is str for name in (*told["undefined"], *told["dropped"])):
        raise TrainingError("expected names of metrics, got others")
    if not all(type(count) is int and 0 <= count < 2**53 for count in told["counts"].values()):
        raise TrainingError(f"expected counts of batches, got {one_line(told['counts'])}")
    for key in told["stays"]:
        fits = isinstance(key, list) and len(key) == 2 and all(type(part) is str for part in key)
        if not fits or key[0] not in asked.states or not key[1].startswith(MARK):
            raise TrainingError(f"expected marks of what stays at the site, got {one_line(key)}")
