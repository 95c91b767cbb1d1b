"""PersonalEvaluation: how well the models serve each client."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from statistics import fmean
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, LocalRun, Metric, Monitor, Server, check_at_least, log_each
from fl_lightning.callbacks.monitors.training import VALIDATION, check_logged, check_validation_step, short_names
from fl_lightning.engine.federation.clients import remedy
from fl_lightning.later import later

OWN = "own/"
NAMES = {"top1": "accuracy", "top3": "top-3 accuracy", "loss": "loss"}  # of a classifier's metrics
BETTER: dict[str, Literal["lower", "higher"]] = {"top1": "higher", "top3": "higher", "loss": "lower"}
MEASURES = ("mean", "worst", "spread", "gini")


def over_clients(values: Tensor, largest_is_worst: bool | None) -> dict[str, float]:
    """Summarise a metric over K clients, each counted once.

    >>> import torch
    >>> from fl_lightning.callbacks.monitors.personal import over_clients
    >>> over_clients(torch.tensor([1.0, 3.0]), largest_is_worst=True)
    {'mean': 2.0, 'worst': 3.0, 'spread': 1.0, 'gini': 0.25}

    Args:
        values: (K,) the metric of each client, K at least 1.
        largest_is_worst: whether the largest value is the worst, as for losses; None if that is not known.

    Returns:
        ``mean``; ``worst``, the mean of the ⌈K/10⌉ worst values, if it is known which are; ``spread``, the standard
        deviation of the K values (divided by K, not K-1); ``gini``, Gini's coefficient, half of the mean difference of
        two values, in means.
    """
    gini = float((values[:, None] - values).abs().mean() / 2 / values.mean().abs()) if values.any() else 0.0
    summary = {"mean": float(values.mean())}
    if largest_is_worst is not None:
        summary["worst"] = float(values.topk(-(-len(values) // 10), largest=largest_is_worst).values.mean())
    return {**summary, "spread": float(values.std(correction=0)), "gini": gini}


def _metrics(group: str, title: str, caption: str) -> Iterator[Metric]:
    """Name the metrics of a module that logs top1, top3 and loss, for the global model or the participants' own."""
    over = {"mean": "mean", "worst": "worst tenth of the clients", "spread": "standard deviation over the clients"}
    over["gini"] = "Gini's coefficient over the clients"
    for name, called in NAMES.items():
        whole, percent = f"{title} {called}", name != "loss"
        panel = whole.lower()
        yield Metric(f"{group}/{name}/<k>", panel, percent=percent, better=BETTER[name], panel=f"{panel} of clients")
        for measure, words in over.items():
            about = f"{caption}: {words}, each client counted once."
            better = BETTER[name] if measure in ("mean", "worst") else ""  # equal clients may be equally bad
            yield Metric(
                f"{group}/{name}_{measure}", f"{whole}: {words}", about, percent=percent, better=better, panel=panel
            )


def _domain_metrics() -> Iterator[Metric]:
    """Name the metrics of a module that logs top1, top3 and loss, by domain."""
    over = {"mean": "mean of those that train", "worst": "worst of those that train", "left_out": "those left out"}
    for name, called in NAMES.items():
        percent = name != "loss"
        panel = f"{called} by domain"
        better = BETTER[name]
        yield Metric(f"domain/{name}/<name>", panel, percent=percent, better=better, panel=panel)
        for measure, words in over.items():
            title = f"{called.capitalize()} by domain: {words}"
            about = "The global model on the test examples of each domain, each domain counted once."
            yield Metric(f"domain/{name}_{measure}", title, about, percent=percent, better=better, panel=panel)


def _taken(names: Collection[str]) -> set[str]:
    """Return the names of metrics that would stand for something else, too: a measure or a client of another metric."""
    taken = {"new"}
    for name in names:
        taken |= {f"{name}_{measure}" for measure in MEASURES}
        metric, _, number = name.rpartition("/")
        if metric in names and number.isdigit():
            taken.add(name)
    return taken


def _new_clients(data: Any) -> range:
    """Return the numbers of the clients that never train."""
    return range(data.num_clients, data.num_clients + data.num_new)


class PersonalEvaluation(Monitor):
    """Evaluates the global model, and each client's own model, on the data that the clients hold out.

    A participant's own model is the one that its local training ended with; it is evaluated on the participant's data.
    The module's ``validation_step`` gives the metrics. ``val/top1`` of the new global model becomes

    - ``held_out/top1/<k>``: the value for client k, if client k holds data out; each takes a column of ``metrics.csv``.
    - ``held_out/top1_mean``, ``_worst``, ``_spread``, ``_gini``: mean, mean of the worst tenth, standard deviation and
      Gini's coefficient of these values, each client counted once.

    ``val/top1`` of the models with which the participants' local training ended becomes ``own/top1/<k>``,
    ``own/top1_mean``, … over the cohort, beside ``own/top1``, their mean weighted by n_k, the number of training
    examples: under FedAvg this is the global model fine-tuned, the baseline of every personal method.

    ``val/top1`` of the models that serve the clients becomes ``personal/top1/<k>``, ``personal/top1_mean``, … over all
    clients that hold data out, beside ``personal/top1``, their mean weighted by n_k. These are the global model, unless
    rules give clients models of their own (``local_part``, ``start`` or ``personal`` of :class:`FederatedCallback`). A
    client that has never taken part is then served by what a new client would start from; ``personal/new`` counts these
    clients.

    Of clients that never train (``data.new_clients``), ``val/top1`` of the model that they start from, the global one
    unless a rule's ``start`` makes another, becomes ``new/top1/<k>``, ``new/top1_mean``, …, beside ``new/top1``, their
    mean weighted by their numbers of examples that are not held out. ``new_tuned/top1`` and so on are those of the
    models that serve them after ``new_epochs`` epochs on these examples, as in a client's first round under the run's
    rules: what a rule's ``personal`` makes then (Per-FedAvg's step, Ditto's second model), else the model at the end of
    the training (FedAvg fine-tuned; FedPer's, with the own part from the global start).

    Where the data have domains (``domain`` of ``ImageFolder``, ``HuggingFace``, ``Table``), ``val/top1`` of the global
    model on the test examples of each becomes ``domain/top1/<name>``, ``domain/top1_mean`` and ``_worst`` over the
    domains that train, and ``_left_out``, the mean over those that do not, each domain counted once.

    The measures of fairness, standard deviation and worst tenth, are those of Li et al., 2020 ("Fair Resource
    Allocation in Federated Learning") and Wang et al., 2021 (FedFV). Every device evaluates the models of all clients.
    The monitor changes nothing. Where clients train at sites of their own, which keep what they hold out, only
    ``own/…`` and ``domain/…`` are logged.

    Args:
        every: number of rounds from one evaluation to the next, at least 1.
        new_epochs: number of epochs for which new clients train before the second evaluation, at least 1.

    Raises:
        ConfigurationError: ``every`` or ``new_epochs`` is less than 1; the module has no ``validation_step``, or one
            that logs nothing; no client holds data out, and the data have no domains; there are new clients, of which
            none holds data out.
    """

    metrics = (
        *_metrics("held_out", "Held-out", "The global model on the examples that clients hold out"),
        *_metrics("own", "Own models'", "The participants' models after their training, on what they hold out"),
        *_metrics("personal", "Personal models'", "The clients' personal models on the examples that they hold out"),
        *_metrics("new", "New clients'", "What clients that never train start from, on what they hold out"),
        *_metrics("new_tuned", "Fine-tuned new clients'", "The models of clients that never train, after fine-tuning"),
        *_domain_metrics(),
        *(
            Metric(
                f"{group}/{name}",
                f"{title} {called}: mean by examples",
                percent=name != "loss",
                better=BETTER[name],
                panel=f"{title} {called}".lower(),
                paper="personal_top1" if (group, name) == ("personal", "top1") else "",
            )
            for group, title in (
                ("own", "Own models'"),
                ("personal", "Personal models'"),
                ("new", "New clients'"),
                ("new_tuned", "Fine-tuned new clients'"),
            )
            for name, called in NAMES.items()
        ),
        Metric(
            "personal/new",
            "Clients that have never taken part",
            "Number of clients with held-out data whose personal model is the one that a new client starts from.",
            panel="new clients",
        ),
    )
    streams = True
    needs_each_client = "compares the metrics of single clients"
    stacks = True

    @later(new_epochs=1)
    def __init__(self, every: int = 1, new_epochs: int = 1) -> None:
        check_at_least(1, every=every, new_epochs=new_epochs)
        self.every, self.new_epochs = every, new_epochs
        self._whole_names: dict[str, str] = {}  # as the module logs them, by the names in which val/ is left out
        self._unclear: dict[str, None] = {}  # metrics of which the module does not say which values are better
        self._told = False  # that there are some

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_validation_step(self, pl_module)
        data: Any = pl_module.data
        advice = remedy(data, "held_out_batches(client)", "held_out", "test_share")
        here = [client for client in range(data.num_clients) if data.has_examples(client)]
        if here and not self._holds_out(data, here) and not data.domain_batches():
            raise ConfigurationError(
                "PersonalEvaluation evaluates on data that clients hold out, but no client of "
                f"{type(data.named).__name__} holds data out: {advice}"
            )
        if data.num_new and not self._holds_out(data, _new_clients(data)):
            raise ConfigurationError(
                f"PersonalEvaluation evaluates on data that new clients hold out, but none of the {data.num_new} of "
                f"{type(data.named).__name__} does: {advice}"
            )

    def _holds_out(self, data: Any, clients: Iterable[int]) -> bool:
        return any(True for client in clients for _ in data.held_out_batches(client))

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        if run.round % self.every == 0:
            for name, value in self._evaluate(orchestrator, run.held_out).items():
                run.log(f"{OWN}{name}", value)

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        seen = self.state.get("seen", torch.zeros(orchestrator.data.num_clients, dtype=torch.bool)).clone()
        seen[list(cohort.clients)] = True
        self.state["seen"] = seen
        if cohort.round % self.every:
            return
        data = orchestrator.data
        here = [client for client in range(data.num_clients) if data.has_examples(client)]
        held_out = {client: self._evaluate(orchestrator, partial(data.held_out_batches, client)) for client in here}
        by_client = {client: row for client, row in held_out.items() if row}
        domains = data.domain_batches()
        self._log_domains(orchestrator, domains)
        if not here:
            self._log(orchestrator, OWN, self._own(cohort))
        if by_client or (here and not domains):
            check_logged(self, orchestrator, by_client)
            self._log(orchestrator, "held_out/", held_out)
            self._log(orchestrator, OWN, self._own(cohort))
            self._log_personal(orchestrator, by_client)
        self._log_new(orchestrator)
        self._tell_unclear(orchestrator)

    def _own(self, cohort: Cohort) -> dict[int, dict[str, float]]:
        """Collect what the participants' own models did on what the participants hold out."""
        own: dict[int, dict[str, float]] = {}
        for result in cohort.results:
            logged = result.metrics.items()
            own[result.client] = {name.removeprefix(OWN): value for name, value in logged if name.startswith(OWN)}
        return own

    def _log_domains(self, orchestrator: Server, domains: Mapping[str, Iterable[Any]]) -> None:
        """Evaluate the global model on the test examples of each domain."""
        data: Any = orchestrator.data
        by_domain = {}
        for domain, batches in domains.items():
            by_domain[domain] = self._evaluate(orchestrator, partial(iter, batches))
        for name in dict.fromkeys(name for row in by_domain.values() for name in row):
            values = {domain: row[name] for domain, row in by_domain.items() if name in row}
            log_each(orchestrator, f"domain/{name}", values, values.values())
            better = self._note_better(orchestrator, "domain/", name, ("mean", "worst", "left_out"))
            trained = [value for domain, value in values.items() if domain not in data.leave_out]
            left_out = [value for domain, value in values.items() if domain in data.leave_out]
            if trained:
                orchestrator.log_round(f"domain/{name}_mean", fmean(trained))
                if better is not None:
                    worst = max(trained) if better == "lower" else min(trained)
                    orchestrator.log_round(f"domain/{name}_worst", worst)
            if left_out:
                orchestrator.log_round(f"domain/{name}_left_out", fmean(left_out))

    def _log_personal(self, orchestrator: Server, rows: dict[int, dict[str, float]]) -> None:
        """Evaluate the models that serve the clients, given what the global model does for those that hold data out."""
        clients = list(rows)
        for client in clients if orchestrator.personal_model is not None else ():
            assert orchestrator.personal_model is not None
            with orchestrator.at(*orchestrator.personal_model(client)):
                rows[client] = self._evaluate(orchestrator, partial(orchestrator.data.held_out_batches, client))
        self._log(orchestrator, "personal/", rows)
        self._log_by_examples(orchestrator, "personal/", rows)
        orchestrator.log_round("personal/new", float((~self.state["seen"][clients]).sum()))

    def _log_new(self, orchestrator: Server) -> None:
        """Evaluate the models of the clients that never train, before and after they are fine-tuned."""
        data = orchestrator.data
        rows: dict[str, dict[int, dict[str, float]]] = {"new/": {}, "new_tuned/": {}}
        for client in _new_clients(data):
            held_out = partial(data.held_out_batches, client)
            if not data.size_of(client) or not any(True for _ in held_out()):
                continue
            models = orchestrator.train_new(client, self.new_epochs)
            for prefix, model in zip(rows, models or (), strict=False):
                with orchestrator.at(*model):
                    rows[prefix][client] = self._evaluate(orchestrator, held_out)
        for prefix, by_client in rows.items():
            self._log(orchestrator, prefix, by_client)
            self._log_by_examples(orchestrator, prefix, by_client)

    def _log_by_examples(self, orchestrator: Server, prefix: str, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Log the mean of each metric over clients, weighted by their numbers of examples."""
        for name in dict.fromkeys(name for row in rows.values() for name in row):
            known = {client: row[name] for client, row in rows.items() if not math.isnan(row.get(name, math.nan))}
            sizes = torch.tensor([orchestrator.data.size_of(client) for client in known], dtype=torch.float64)
            values = torch.tensor(list(known.values()), dtype=torch.float64)
            orchestrator.log_round(f"{prefix}{name}", float(sizes @ values / sizes.sum()))

    def _evaluate(self, orchestrator: Server, held_out: Callable[[], Iterable[Any]]) -> dict[str, float]:
        with orchestrator.server_side("held out"):
            logged = orchestrator.evaluate(held_out())
        short = short_names(logged, _taken([name.removeprefix(VALIDATION) for name in logged]))
        self._whole_names |= {short[name]: name for name in logged}
        return {short[name]: value for name, value in logged.items()}

    def _note_better(
        self, orchestrator: Server, prefix: str, name: str, measures: Iterable[str] = ("mean", "worst")
    ) -> Literal["lower", "higher"] | None:
        """Note which values of a metric's measures are better: those of the metric, as the module logs it.

        Args:
            orchestrator: the orchestrator.
            prefix: beginning of the names that are logged.
            name: the metric's name after the prefix.
            measures: endings of the measures.
        """
        whole = self._whole_names.get(name, f"{VALIDATION}{name}")
        better = orchestrator.note_better(whole)
        ends = ["", "/*", *(f"_{measure}" for measure in measures)]
        orchestrator.better.update(dict.fromkeys([f"{prefix}{name}{end}" for end in ends], better))
        if better is None:
            self._unclear[whole] = None
        return better

    def _tell_unclear(self, orchestrator: Server) -> None:
        """Say once of which metrics the module does not say which values are better."""
        if self._unclear and not self._told:
            self._told = True
            first, *others = self._unclear
            more = f" and {len(others)} more" if others else ""
            rank_zero_warn(
                f"PersonalEvaluation logs no worst clients by {first}{more}: {type(orchestrator.client).__name__} does "
                f'not say which values are better; let it have lower_is_better = ("{first}",) or higher_is_better'
            )

    def _log(self, orchestrator: Server, prefix: str, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Log metrics by client and over the clients that have a value; one that holds nothing out has no metrics."""
        for name in dict.fromkeys(name for row in rows.values() for name in row):
            found = {client: row[name] for client, row in rows.items() if name in row}
            known = {client: value for client, value in found.items() if not math.isnan(value)}
            if prefix != OWN:  # clients have logged these, and the round counts them
                orchestrator.log_left_out(f"{prefix}{name}", [client for client in found if client not in known])
            log_each(orchestrator, f"{prefix}{name}", known, known.values())
            values = torch.tensor(list(known.values()) or [math.nan], dtype=torch.float64)
            better = self._note_better(orchestrator, prefix, name)
            largest_is_worst = None if better is None else better == "lower"
            for measure, value in over_clients(values, largest_is_worst).items():
                orchestrator.log_round(f"{prefix}{name}_{measure}", value)
