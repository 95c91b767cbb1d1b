"""FederatedCallback, the base class of algorithms, which change a round, and Monitor, of callbacks that observe it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from typing_extensions import override

from fl_lightning.engine.module.held import Held
from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.rules.declared import declares
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.states.disk import DiskState, check_name
from fl_lightning.engine.states.sealed import SealedState
from fl_lightning.engine.states.sent import MARK, SentState, has_shape
from fl_lightning.engine.updates.cohort import Cohort
from fl_lightning.errors import ConfigurationError

#: The parts of a round that a rule can settle: the updates that enter the sum, their starting or final weights, the
#: shrinking factor, the reduction itself, the server's step, the point where clients evaluate their gradients, a loss
#: that replaces the module's.
Part = Literal["updates", "base weights", "weights", "shrinking", "reduction", "step", "local gradient", "loss"]


class FederatedCallback(Callback):
    """One algorithm, on the clients, on the server, or on both. Every hook does nothing until it is overridden.

    A whole rule: scale every update down to the median norm of its cohort. ``aggregate`` takes the cohort that the
    previous rule returned, and returns a new one. It changes K×K numbers alone, never the (P,) updates.

    >>> import torch
    >>> from fl_lightning import ClientResult, Cohort, FederatedCallback
    >>> class MedianClipping(FederatedCallback):
    ...     settles = frozenset({"updates"})
    ...
    ...     def aggregate(self, orchestrator, cohort):
    ...         norms = cohort.corrected_gram.diagonal().sqrt()
    ...         return cohort.scaled((norms.quantile(0.5) / norms).clamp(max=1.0))

    Three clients send updates of the norms 5, 10 and 1:

    >>> deltas = torch.tensor([[3.0, 4.0], [0.0, 10.0], [1.0, 0.0]])
    >>> results = [ClientResult(k, num_samples=1, num_steps=1, loss=0.0, normalizer=1.0) for k in range(3)]
    >>> cohort = Cohort.collect(round=1, anchor=torch.zeros(2), deltas=deltas, results=results)
    >>> clipped = MedianClipping().aggregate(None, cohort)
    >>> clipped.mixing.diagonal().tolist()
    [1.0, 0.5, 1.0]
    >>> clipped.update  # the mean of (3, 4), (0, 5) and (1, 0)
    tensor([1.3333, 3.0000])

    A rule runs as one of the Trainer's callbacks: ``Trainer(callbacks=[MedianClipping()])``, or ``trainer.callbacks``
    in YAML. The hooks of Lightning's own Callback are there, too. Several callbacks act in the order of that list.

    Attributes:
        state: tensors that the rule keeps from round to round, by name; empty when a fit begins, saved in checkpoints.
            A tensor that belongs to one client is named ``name/client``; with ``model.client_states: disk``, each such
            tensor is kept in a file. Every device must hold the same state: set the state in server hooks, from the
            values that the clients sent (:meth:`LocalRun.send`). Client hooks only read the state: a change there is
            refused.
    """

    state: MutableMapping[str, Tensor]

    #: The parts of a round that the rule settles. A chain in which one rule would undo another rule's work is refused
    #: at the start.
    settles: ClassVar[frozenset[Part]] = frozenset()

    #: Names of the tensors in ``state`` that each client of a cohort receives beside the model, counted by
    #: ``bytes/down``; a tensor that is not yet in ``state`` is zero, and not sent. Clients send by
    #: :meth:`LocalRun.send`.
    broadcasts: ClassVar[tuple[str, ...]] = ()

    #: Whether ``start`` runs at the server where clients train on other machines, since it needs a state that is not
    #: sent. By default it runs at the client's site, which has the client's data and its part of the state.
    starts_at_server: ClassVar[bool] = False

    #: Why the callback cannot act where clients train on other machines, such as "reads the clients' examples at the
    #: server"; a run whose clients do is refused at the start. None for a callback that can.
    needs_one_machine: ClassVar[str | None] = None

    #: Why the callback cannot act where the server learns the sum of the clients' updates alone, though it streams and
    #: reads nothing else, such as "reads the norms of single updates"; None for a callback that can.
    needs_each_client: ClassVar[str | None] = None

    #: What the server hooks read of clients besides updates and numbers of examples, all of which has no noise where
    #: clients add noise to their updates; "examples" if client hooks learn from a client's examples beside its local
    #: steps. Private rules refuse what their ε does not cover, and a rule of yours that does not set this attribute.
    reads: ClassVar[frozenset[Literal["losses", "class counts", "steps", "examples"]]] = frozenset()

    #: Whether ``upload`` computes from the update that it gets, and from such updates of earlier rounds, alone: then it
    #: may come after the noise of :class:`LocalDP`.
    post_processes: ClassVar[bool] = False

    #: True for a rule that learns on the server's proxy set: a run without a proxy set is refused at the start.
    needs_proxy: ClassVar[bool] = False

    #: Whether the client hooks serve groups of clients that train at once (``model.clients_at_once``): tensors that
    #: belong to a client are in ``run.kept``, ``loss`` computes without ``.item()``, and ``closure`` and the
    #: hooks before and after a step broadcast over the rows of ``run.params`` and ``run.grads`` (N, P).
    stacks: ClassVar[bool] = False

    #: Whether the server hooks read no single updates (``deltas``, ``gram``, … of a cohort). If this holds for all
    #: callbacks of a run, each update of a large cohort is added to one sum when it arrives, and then dropped.
    #: Callbacks without server hooks read none; a rule that changes weights must also define :meth:`stream_weights`.
    streams: ClassVar[bool] = False

    #: Whether ``aggregate`` and ``reduce`` serve means of several clients in the place of single updates (B rows of
    #: ``weights`` and ``mixing``, which need not be K): they read weights and updates, and not whose those are.
    anonymous: ClassVar[bool] = False

    #: Whether ``aggregate`` may return means of several clients in the place of single updates: with B <= K rows of
    #: ``weights`` and ``mixing``. Rules that come later must be ``anonymous``.
    groups: ClassVar[bool] = False

    #: Whether the rule moves the global model in a round without an update, too: its ``aggregate`` then gets a cohort
    #: of no clients, as whose sum the ``update`` hooks see what it has ``added``.
    steps_alone: ClassVar[bool] = False

    #: For rules that are not linear in the updates (median, …): ``reduce(orchestrator, cohort)`` returns the (P,)
    #: update in place of the weighted sum. At most one rule of a run may define ``reduce``.
    reduce: Callable[[Server, Cohort], Tensor] | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # A fit begins with an empty state, unless it resumes from a checkpoint.
        if stage != "fit" and hasattr(self, "state"):
            return  # the state of the last fit stays, to be inspected and saved
        on_disk = getattr(pl_module, "client_states", "memory") == "disk"
        self.state = DiskState(writes=trainer.is_global_zero) if on_disk else {}

    @override
    def state_dict(self) -> dict[str, Any]:
        # A scheduler's signal may save a checkpoint while a client trains.
        state = self._plain_state
        return state.state_dict() if isinstance(state, DiskState) else dict(state)

    @property
    def _plain_state(self) -> MutableMapping[str, Tensor]:
        return self.state.data if isinstance(self.state, SealedState) else self.state

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved_on_disk = "replaced" in state_dict
        if isinstance(self.state, DiskState) != saved_on_disk:
            place, setting = ("on disk", "disk") if saved_on_disk else ("in memory", "memory")
            raise ConfigurationError(
                f"the checkpoint keeps the client states of {type(self).__name__} {place}: set model.client_states to "
                f"{setting}"
            )
        if isinstance(self.state, DiskState):
            self.state.load_state_dict(state_dict)
        else:
            self.state = dict(state_dict)

    def recall(self, name: str, start: Tensor) -> Tensor:
        """Return ``state[name]`` on the device and in the dtype of ``start``, or ``start`` if there is no such name.

        Where clients train on other machines, what the server has sent must have the shape of ``start``; a size of 0
        stands for any.

        A copy from host memory to a GPU goes through pinned memory, so that the host need not wait until the GPU has
        done its work so far. That path has not been tried on CUDA.
        """
        if name not in self.state:
            self._refuse_kept(name)
            return start
        value = self.state[name]
        if isinstance(self._plain_state, SentState) and not has_shape(value, start.shape):
            raise ConfigurationError(
                f"{type(self).__name__} expects {name} to be {tuple(start.shape)}, as what stands for it at first is, "
                f"got {tuple(value.shape)} from the server"
            )
        if start.is_cuda and not value.is_cuda:
            return value.pin_memory().to(start, non_blocking=True)
        return value.to(start)

    def _refuse_kept(self, name: str) -> None:
        """Refuse to go on without a value that stays with its client, where the server has a mark in its place."""
        data = self._plain_state
        if not isinstance(data, SentState) and f"{MARK}{name}" in data:
            raise ConfigurationError(
                f"{type(self).__name__} asks for {name} at the server, but it stays at its client's site: leave out "
                "what evaluates or changes the models of single clients, such as PersonalEvaluation"
            )

    def keep(self, run: LocalRun, name: str, value: Tensor) -> None:
        """Let ``state["name/client"]`` be ``value`` after the round, in which :meth:`recall` finds it; not sent.

        A client that is left out of the round leaves its state as it was. A name that no file can have is refused.
        """
        check_name(f"{name}/{run.client}")
        run.stays[self.state_key, name] = value.detach().clone()

    def sends(self, orchestrator: Server) -> Mapping[str, Tensor]:
        """Return what clients send by :meth:`LocalRun.send`, by name: tensors of its shape and dtype, of any value.

        Where clients train on other machines, the server leaves out a client that sends anything else, or not all of
        it. A size of 0 stands for any.
        """
        return {}

    def local_part(self, module: LightningModule) -> Iterable[str]:
        """Name parameters, buffers and submodules of the client module that stay with each client."""
        return ()

    def start(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        """Return the model that a client starts from, which becomes ``run.anchor``, given the model so far.

        Args:
            orchestrator: the orchestrator.
            client: the client's id.
            params: (P,) the parameters; return a new vector to change them.
            buffers: the values of the tensors in ``orchestrator.buffer_names``; return a new list to change them.
        """
        return params, buffers

    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        """Return the model that serves a client, given the model so far; by default the one that :meth:`start` gives.

        The arguments are those of :meth:`start`.
        """
        return self.start(orchestrator, client, params, buffers)

    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        """Prepare for a client, before its first local step; the module holds the model that the client starts from.

        The client starts from what the hook writes to ``run.params`` (P,) and to buffers of ``run.module``.
        """

    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        """Return the loss to differentiate, given the loss so far and the ``outputs`` that training_step returned."""
        return loss

    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        """Return a replacement for ``closure``, which evaluates the loss and the gradient at ``run.params``.

        The replacement may call ``closure`` again at other parameters (SAM and related methods).
        """
        return closure

    def on_before_client_step(self, run: LocalRun) -> None:
        """Correct ``run.grads`` (P,) in place, before each local optimizer step and before clipping."""

    def on_after_client_step(self, run: LocalRun) -> None:
        """Correct ``run.params`` (P,) in place, after each local optimizer step: momentum does not see the change."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        """Read ``run.params``, the client's model, after the client's last local step."""

    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        """Return the (P,) update that leaves the client, given the ``update`` so far, after all ``on_client_end``.

        Set ``run.upload_bytes`` to its size in bytes if the update is compressed; a new update that a later rule
        returns has its whole size, unless that rule sets the size anew.
        """
        return update

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        """Return the cohort with new weights or a new mixing of the updates."""
        return cohort

    def stream_weights(self, orchestrator: Server, cohort: Cohort, weights: Tensor) -> Tensor:
        """Return the weights (k,) with which some updates enter the round's sum, each from its client's values alone.

        The weights may lack a factor that all clients of the round share: ``aggregate`` finds that factor when all
        updates have arrived.

        Args:
            orchestrator: the orchestrator.
            cohort: k clients of the round; of their updates, only ``norms`` may be read.
            weights: (k,) the weights so far; before the first rule, the clients' numbers of examples.
        """
        return weights

    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        """Return the (P,) update that the server optimizer applies, given the ``update`` so far."""
        return update

    def refine(self, orchestrator: Server, cohort: Cohort) -> None:
        """Change ``orchestrator.params`` (P,), the parameters of the new global model, in place."""

    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        """Look at the new global model; ``orchestrator.log_round`` logs a metric."""


class Monitor(FederatedCallback):
    """Observes a run without changing it: with or without a monitor, a run ends in the same model, bit for bit.

    Reports treat runs that differ only in their monitors as one method. A monitor draws random numbers from
    ``orchestrator.generator(purpose)``, so that all other draws of the run stay the same.

    Raises:
        ConfigurationError: a subclass defines an attribute or a hook that only a rule may define.
    """

    _FOR_RULES = (
        *("settles", "broadcasts", "reads", "closure", "on_before_client_step", "on_after_client_step"),
        *("stream_weights", "reduce", "update", "refine", "local_part", "start", "personal", "upload"),
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if changing := [name for name in cls._FOR_RULES if name in vars(cls)]:
            raise ConfigurationError(
                f"{cls.__name__} is a Monitor, which changes nothing, but defines {', '.join(changing)}: derive "
                f"{cls.__name__} from FederatedCallback"
            )


def overrides(callback: FederatedCallback, hook: str) -> bool:
    """Tell whether a rule's class overrides a hook of :class:`FederatedCallback`, as a rule asks that forbids a hook.

    >>> from fl_lightning import FederatedCallback, overrides
    >>> class Halved(FederatedCallback):
    ...     def update(self, orchestrator, cohort, update):
    ...         return update / 2
    >>> overrides(Halved(), "update"), overrides(Halved(), "aggregate")
    (True, False)

    Args:
        callback: the rule.
        hook: the name of the hook.
    """
    return getattr(type(callback), hook) is not getattr(FederatedCallback, hook)


WEIGHT_HOOKS = ("aggregate", "stream_weights")
SERVER_HOOKS = (*WEIGHT_HOOKS, "update", "refine", "on_round_end")
START_HOOKS, SENT_HOOKS = ("local_part", "start"), ("local_part", "start", "upload")
CLIENT_HOOKS = ("on_client_start", "loss", "closure", "on_before_client_step", "on_after_client_step", "on_client_end")


def serves_stacks(callback: FederatedCallback) -> bool:
    """Tell whether all client hooks of a callback serve groups of clients."""
    own = [hook for hook in CLIENT_HOOKS if overrides(callback, hook)]
    return not own or declares(callback, "stacks", own)


def streams(callback: FederatedCallback, hooks: Sequence[str] = SERVER_HOOKS) -> bool:
    """Tell whether none of a callback's hooks in ``hooks`` reads single updates."""
    own = [hook for hook in hooks if overrides(callback, hook)]
    return callback.reduce is None and (not own or declares(callback, "streams", own))


def is_anonymous(callback: FederatedCallback) -> bool:
    """Tell whether no hook of a callback that acts before the sum needs to know whose updates it gets."""
    own = [hook for hook in ("aggregate", "reduce") if overrides(callback, hook)]
    return not own or declares(callback, "anonymous", own)


@contextmanager
def sealed_states(callbacks: Iterable[FederatedCallback]) -> Iterator[None]:
    """Make the callbacks' states read-only inside a ``with`` block, in which clients train.

    Raises:
        ConfigurationError: a client hook has changed the state of its callback.
    """
    seals: list[tuple[FederatedCallback, SealedState]] = []
    for callback in callbacks:
        if "state" in vars(callback):  # not if a subclass has its own setup
            own = [hook for hook in CLIENT_HOOKS if overrides(callback, hook)]
            seals.append((callback, SealedState(callback.state, type(callback).__name__, own)))
    for callback, seal in seals:
        callback.state = seal
    try:
        yield
    finally:
        replaced = [seal for callback, seal in seals if callback.state is not seal]
        for callback, seal in seals:
            callback.state = seal.data
        for seal in replaced:
            seal.refuse("replaces self.state")
        for _, seal in seals:
            seal.check_unchanged()


@contextmanager
def attributes_kept(callbacks: Iterable[FederatedCallback]) -> Iterator[None]:
    """Put back what callbacks change in their attributes inside a ``with`` block, in which a client trains for a check.

    A rule may count its own calls. Containers and objects are put back in place, as those of a module are
    (:class:`Held`); ``state`` is left alone.
    """
    kept = [(vars(callback), dict(vars(callback))) for callback in callbacks]
    holder = nn.Module()
    for place, (_, before) in enumerate(kept):
        for name, value in before.items():
            if name != "state":
                vars(holder)[f"{place} {name}"] = value
    held = Held(holder, ())
    try:
        yield
    finally:
        held.restore()
        for attributes, before in kept:
            attributes.clear()
            attributes.update(before)


def federated(trainer: Trainer) -> list[FederatedCallback]:
    """Return the Trainer's federated callbacks, rules and monitors, in the order given."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set outside its __init__
    return [callback for callback in callbacks if isinstance(callback, FederatedCallback)]


def rules_of(trainer: Trainer) -> list[FederatedCallback]:
    """Return the rules of a run, without its monitors, in the order in which they act.

    A rule asks in ``on_fit_start(trainer, pl_module)`` whether another one would undo its work (:func:`overrides`).

    Args:
        trainer: the Trainer that trains the run.
    """
    return [callback for callback in federated(trainer) if not isinstance(callback, Monitor)]
