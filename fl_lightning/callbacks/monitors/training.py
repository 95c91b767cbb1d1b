"""TrainingEvaluation: how well the global model does on the clients' training examples."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, Metric, Monitor, Server, TrainingBatch, check_at_least, is_due

VALIDATION = "val/"  # beginning of the names that a module's validation_step logs


class TrainingEvaluation(Monitor):
    """Evaluates the global model on the training examples of all clients (FedGAM, Table 3).

    The module's ``validation_step`` gives the metrics: ``val/top1`` of the new global model becomes
    ``global_train/top1``, over the training examples of all clients, each counted once; a name that does not begin with
    ``val/`` is kept whole. The examples are those of one local epoch: with ``data.drop_last``, the last ones of a
    client may be left out. Augmentations of the data module are not applied; random transforms of a dataset of one's
    own are. The model is in evaluation mode. An evaluation takes one forward pass over the training set, on every
    device. The monitor changes nothing.

    Args:
        every: number of rounds from one evaluation to the next; the last round that ``trainer.max_epochs`` allows is
            evaluated, too.

    Raises:
        ConfigurationError: ``every`` is less than 1; the module has no ``validation_step``, or one that logs nothing.
    """

    metrics = (
        Metric(
            "global_train/top1",
            "Global model's training accuracy",
            "Share of all clients' training examples whose most likely class under the new global model is the right "
            "one.",
            percent=True,
            better="higher",
            panel="global model on training examples: accuracy",
            paper="train_top1",
            axis="training accuracy of the global model",
        ),
        Metric(
            "global_train/top3",
            "Global model's training accuracy, top 3",
            "Share of all clients' training examples whose right class is among the three most likely ones.",
            percent=True,
            better="higher",
            panel="global model on training examples: accuracy",
        ),
        Metric(
            "global_train/loss",
            "Global model's training loss",
            "Mean loss of the new global model over all clients' training examples.",
            better="lower",
            panel="global model on training examples: loss",
        ),
    )

    needs_one_machine = "evaluates the clients' training examples at the server"
    streams = True

    def __init__(self, every: int = 1) -> None:
        check_at_least(1, every=every)
        self.every = every

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_validation_step(self, pl_module)

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if not is_due(orchestrator, self.every):
            return
        with orchestrator.server_side("training examples"):
            logged = orchestrator.evaluate(_training_batches(orchestrator))
        check_logged(self, orchestrator, logged)
        for name, short in short_names(logged).items():
            orchestrator.log_round(f"global_train/{short}", logged[name])
            orchestrator.better[f"global_train/{short}"] = orchestrator.better.get(name)


def short_names(names: Iterable[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Leave out ``val/`` at the beginning of names, and keep other names whole; two names never become one.

    >>> from fl_lightning.callbacks.monitors.training import short_names
    >>> short_names(["val/loss", "shuffled/loss"])
    {'val/loss': 'loss', 'shuffled/loss': 'shuffled/loss'}
    >>> short_names(["val/loss", "loss"])
    {'val/loss': 'val/loss', 'loss': 'loss'}

    Args:
        names: the names that a module logs in one evaluation.
        taken: names that stand for something else; ``val/`` stays before these, too.
    """
    whole = list(names)
    short = {}
    for name in whole:
        rest = name.removeprefix(VALIDATION)
        is_other = rest in taken or (rest != name and rest in whole)
        short[name] = f"{VALIDATION}{rest}" if is_other else rest
    return short


def check_validation_step(monitor: Monitor, orchestrator: Any) -> None:
    """Refuse a module that a monitor cannot evaluate.

    Raises:
        ConfigurationError: the client module has no ``validation_step``.
    """
    name, client = type(monitor).__name__, orchestrator.client
    if not is_overridden("validation_step", client, LightningModule):
        raise ConfigurationError(
            f"{name} evaluates by the module's validation_step, but {type(client).__name__} has none: define "
            f"validation_step, or remove {name}"
        )


def check_logged(monitor: Monitor, orchestrator: Server, logged: Mapping[Any, Any]) -> None:
    """Refuse a module whose ``validation_step`` has logged nothing that a monitor could show.

    Raises:
        ConfigurationError: ``logged`` is empty.
    """
    if not logged:
        name = type(monitor).__name__
        raise ConfigurationError(
            f"{type(orchestrator.client).__name__}.validation_step logs nothing, so {name} has nothing to show: let "
            f"validation_step log metrics in every step, or remove {name}"
        )


def _training_batches(orchestrator: Server) -> Iterator[Any]:
    """Yield the batches of one local epoch of each client that has data; no transfer hook augments them."""
    data = orchestrator.data
    for client in data.sizes.nonzero().flatten().tolist():
        for batch in data.client_batches(client, orchestrator.generator("training examples", client)):
            yield list(batch) if isinstance(batch, TrainingBatch) else batch
