"""Cohort: the updates that the server holds between local training and the new global model."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from fl_lightning.engine.updates.buffers import average_buffers
from fl_lightning.engine.updates.gram import gram_of_mixed
from fl_lightning.engine.updates.updates import Summed, Updates
from fl_lightning.errors import ConfigurationError


@dataclass(frozen=True)
class ClientResult:
    """The values that a client sends beside its update.

    Attributes:
        client: the client's id.
        num_samples: n_k, the client's number of training examples.
        num_steps: τ_k, the number of optimizer steps taken.
        loss: mean training loss over the local steps; nan without a step.
        normalizer: ‖a_k‖₁, the total weight of the client's gradients in its update (FedNova).
        buffers: the module's buffers after local training, followed by its frozen parameters; None for a buffer that
            the module has set to None.
        metrics: the logged metrics, each reduced over the local steps.
        reductions: "sum", "min" or "max" for each logged metric that is not averaged.
        shown: ``prog_bar`` and ``logger`` of each metric that was logged with them.
        loss_scale: scale and growth tracker of the client's GradScaler at its end; None without a GradScaler.
        learning_rate: η_k, the client's learning rate; ``normalizer`` is in units of it.
        vectors: tensors that rules sent with :meth:`LocalRun.send`, by name.
        stays: tensors that are not sent (:meth:`FederatedCallback.keep`), by the rule's ``state_key`` and name.
        upload_bytes: bytes of the update, if they are not those of the parameters.
    """

    client: int
    num_samples: int
    num_steps: int
    loss: float
    normalizer: float
    buffers: list[Tensor | None] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    reductions: dict[str, str] = field(default_factory=dict)
    shown: dict[str, dict[str, bool]] = field(default_factory=dict)
    loss_scale: tuple[float, int] | None = None
    learning_rate: float = 0.0
    vectors: dict[str, Tensor] = field(default_factory=dict)
    stays: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    upload_bytes: int | None = None


@dataclass(frozen=True, eq=False)
class Cohort:
    """Holds one round's updates, and the weights that combine them into the server's step.

    The step is ``weights @ mixing @ deltas``: a rule that works across clients changes K×K numbers, where K is the
    number of clients in the cohort and P the number of trainable parameters. A rule returns a new cohort and does not
    change the cohort that it gets. Tensors whose shape has no P are small and stay on the CPU. The next round reuses
    the memory of the updates: clone those that you keep.

    Two clients of 1 and 3 examples, whose updates conflict:

    >>> import torch
    >>> from fl_lightning import ClientResult, Cohort
    >>> deltas = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
    >>> results = [ClientResult(k, num_samples=n, num_steps=1, loss=0.0, normalizer=1.0) for k, n in enumerate([1, 3])]
    >>> cohort = Cohort.collect(round=1, anchor=torch.zeros(2), deltas=deltas, results=results)
    >>> cohort.gram.tolist()
    [[4.0, -2.0], [-2.0, 2.0]]
    >>> cohort.update  # 1/4 (2, 0) + 3/4 (-1, 1)
    tensor([-0.2500,  0.7500])

    Add as much of update 1 to update 0 as makes the two orthogonal; then give all clients the same weight:

    >>> projected = cohort.corrected(torch.tensor([[1.0, 1.0], [0.0, 1.0]]).double())
    >>> projected.corrected_gram.tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    >>> projected.uniform().update  # the mean of (1, 1) and (-1, 1)
    tensor([0., 1.])

    Attributes:
        round: the round's number, 1, 2, …
        clients: the K client ids, ascending.
        anchor: (P,) the global model w that the clients started from.
        updates: the original updates w_k - w, before any correction; as a matrix, ``deltas``.
        num_samples: (K,) numbers of training examples, n_k.
        num_steps: (K,) numbers of optimizer steps taken, τ_k.
        losses: (K,) mean training losses over each client's local steps.
        normalizers: (K,) ‖a_k‖₁, the total weight of a client's gradients in its update (FedNova).
        learning_rates: (K,) η_k, the clients' learning rates: a constant gradient of 1 would have moved each parameter
            of client k by η_k ‖a_k‖₁.
        weights: (K,) aggregation weights, float64.
        mixing: (K, K) float64; row k combines the original updates into client k's corrected update. After a rule that
            groups clients, B rows stand for B groups, and ``weights`` are theirs.
        shrinking: factor γ of the new model γ·(w + weights @ mixing @ deltas) (FedLAW).
        added: (P,) what rules have added to the sum by :meth:`plus`; None for nothing.
        buffers: buffers and frozen parameters of the new global model: the mean weighted by n_k of float tensors, the
            maximum of integer tensors.
        metrics: means of the training loss and of the logged metrics, weighted by n_k, over the clients that logged
            them and have a value (nan is none); the sum, minimum or maximum of a metric logged with such a
            ``reduce_fx``.
        results: one :class:`ClientResult` per client, with the client's own buffers and metrics, and the vectors that
            rules sent.
    """

    round: int
    clients: tuple[int, ...]
    anchor: Tensor
    updates: Updates | Summed
    num_samples: Tensor
    num_steps: Tensor
    losses: Tensor
    normalizers: Tensor
    learning_rates: Tensor
    weights: Tensor
    mixing: Tensor
    shrinking: float = 1.0
    added: Tensor | None = None
    buffers: Sequence[Tensor | None] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    results: Sequence[ClientResult] = ()

    @classmethod
    def collect(
        cls, round: int, anchor: Tensor, deltas: Tensor | Updates | Summed, results: Sequence[ClientResult]
    ) -> Self:
        """Make the cohort of a round from its updates, uncorrected and weighted by n_k.

        Args:
            round: the round's number, 1, 2, …
            anchor: (P,) the global model that the clients started from.
            deltas: (K, P) updates, one row per client.
            results: the values that the clients sent beside their updates, in the order of the rows.
        """

        def column(name: str, dtype: torch.dtype) -> Tensor:
            return torch.tensor([getattr(result, name) for result in results], dtype=dtype)

        num_samples = column("num_samples", torch.int64)
        return cls(
            round=round,
            clients=tuple(result.client for result in results),
            anchor=anchor,
            updates=Updates.of(deltas) if isinstance(deltas, Tensor) else deltas,
            num_samples=num_samples,
            num_steps=column("num_steps", torch.int64),
            losses=column("loss", torch.float64),
            normalizers=column("normalizer", torch.float64),
            learning_rates=column("learning_rate", torch.float64),
            weights=num_samples.double() / num_samples.sum(),
            mixing=torch.eye(len(results), dtype=torch.float64),
            buffers=average_buffers([result.buffers for result in results], num_samples),
            metrics=_average_metrics(results),
            results=results,
        )

    @property
    def deltas(self) -> Tensor:
        """(K, P) the original updates w_k - w, before any correction.

        On several devices, each device keeps some columns, and this property gathers all columns on every device. The
        methods below need less memory.
        """
        return self.updates.whole

    def rows(self) -> Iterator[Tensor]:
        """Yield the original updates (P,), one by one; clone those that you keep."""
        return self.updates.rows()

    def combine(self, coefficients: Tensor) -> Tensor:
        """Return the (P,) sum of the original updates, each times its entry of ``coefficients`` (K,)."""
        return self.updates.combine(coefficients)

    def products(self, vector: Tensor) -> Tensor:
        """Compute the (K,) inner products of the original updates with a vector (P,), in its dtype; float64, on CPU."""
        return self.updates.products(vector)

    def columns(self, indices: Tensor) -> Tensor:
        """Return some columns (K, b) of the corrected updates, given their indices (b,); float64, on the CPU."""
        return self.mixing @ self.updates.columns_at(indices)

    @cached_property
    def gram(self) -> Tensor:
        """(K, K) inner products of the original updates ``deltas``, float64, computed once per round."""
        return self.updates.gram()

    @property
    def norms(self) -> Tensor:
        """(K,) norms of the corrected updates, float64; if ``mixing`` is diagonal, the Gram matrix is not computed."""
        factors = self.mixing.diagonal()
        if torch.equal(self.mixing, factors.diag()):
            return factors.abs() * self.updates.norms
        return self.corrected_gram.diagonal().clamp(min=0).sqrt()

    @property
    def corrected_gram(self) -> Tensor:
        """(K, K) inner products of the corrected updates ``mixing @ deltas``."""
        return gram_of_mixed(self.gram, self.mixing)

    @property
    def update(self) -> Tensor:
        """(P,) the step of the global model: γ·(w + weights @ mixing @ deltas + added) - w."""
        step = self.combine(self.weights @ self.mixing)
        step = step if self.added is None else step + self.added
        return step if self.shrinking == 1.0 else self.shrinking * step + (self.shrinking - 1) * self.anchor

    def by_coordinate(self, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """Reduce the corrected updates to one (P,) update by a function that is not linear in them (median, …).

        Args:
            reduce: function that reduces a block (K, B) of B columns to (B,), each column on its own.
        """
        mixed = not torch.equal(self.mixing, torch.eye(len(self.mixing), dtype=self.mixing.dtype))
        return self.updates.by_coordinate(reduce, self.mixing if mixed else None)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields, or ``deltas``, changed; only new ``deltas`` need a new Gram matrix.

        Raises:
            ConfigurationError: ``updates`` is a matrix.
        """
        if isinstance(changes.get("updates"), Tensor):
            raise ConfigurationError("replace(updates=…) got a Tensor: give a matrix (K, P) of updates as deltas=…")
        if "deltas" in changes:
            changes["updates"] = Updates.of(changes.pop("deltas"))
        changed = dataclasses.replace(self, **changes)
        if "gram" in self.__dict__ and "updates" not in changes:
            changed.__dict__["gram"] = self.gram
        return changed

    def scaled(self, factors: Tensor) -> Self:
        """Return a copy with client k's corrected update multiplied by entry k of ``factors`` (K,)."""
        return self.replace(mixing=factors[:, None] * self.mixing)

    def corrected(self, combination: Tensor) -> Self:
        """Return a copy whose corrected updates are ``combination`` (K, K) times the present corrected updates."""
        return self.replace(mixing=combination @ self.mixing)

    def by_client(self) -> Self:
        """Return a copy with a weight and an update for each client, and the same sum, where rows stand for several."""
        if len(self.weights) == len(self.clients):
            return self
        size = len(self.clients)
        return self.replace(weights=self.weights @ self.mixing, mixing=torch.eye(size, dtype=torch.float64))

    def plus(self, vector: Tensor) -> Self:
        """Return a copy to whose sum a vector (P,) is added, such as noise."""
        return self.replace(added=vector if self.added is None else self.added + vector)

    def uniform(self) -> Self:
        """Return a copy in which every client has the weight 1/K."""
        return self.replace(weights=torch.full_like(self.weights, 1 / len(self.weights)))


def _average_metrics(results: Sequence[ClientResult]) -> dict[str, float]:
    """Reduce the training loss and each metric over the clients that have a value, by default to the mean by n_k."""
    columns: dict[str, list[tuple[int, float]]] = {}
    reductions: dict[str, str] = {}
    for result in results:
        trained = {} if math.isnan(result.loss) else {"train/loss": result.loss}
        for name, value in {**trained, **result.metrics}.items():
            columns.setdefault(name, []).extend([] if math.isnan(value) else [(result.num_samples, value)])
        reductions |= result.reductions
    return {name: _reduce(pairs, reductions.get(name, "mean")) for name, pairs in columns.items()}


def _reduce(pairs: Sequence[tuple[int, float]], reduction: str) -> float:
    if not pairs:
        return math.nan
    if reduction == "mean":
        return sum(n * v for n, v in pairs) / sum(n for n, _ in pairs)
    values = torch.tensor([value for _, value in pairs], dtype=torch.float64)
    return float(getattr(values, reduction)())
