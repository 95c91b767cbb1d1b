"""How the training loss bends around a model: the Hessian's largest eigenvalues, and loss surfaces."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh  # type: ignore[import-untyped]  # SciPy ships no types
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import ConcatDataset, default_collate

from fl_lightning import ConfigurationError, Server
from fl_lightning.engine.logged import in_use, spare_metrics
from fl_lightning.engine.seeding import derive, generator, seed_globals
from fl_lightning.engine.server import evaluating

SMALL = 50  # parameters up to which the whole matrix takes no more products than its largest eigenvalues
RESTARTS = 100  # of Lanczos' method, some 15 products each


def top_eigenvalues(
    product: Callable[[Tensor], Tensor], start: Tensor, count: int = 5, tolerance: float = 1e-4
) -> Tensor:
    """The eigenvalues of largest magnitude of a symmetric matrix that is known by its products with vectors.

    By Lanczos' method with implicit restarts (ARPACK, Lehoucq et al., 1998). Like power iteration it needs products
    alone, and signs come out right; but it also converges where eigenvalues lie close, as those of a Hessian do. Of an
    eigenvalue that occurs several times, it may find some only. Up to 50 rows, the matrix is built and solved whole.

    Args:
        product: the matrix (P, P) times a vector (P,).
        start: (P,) where the search begins, drawn at random; its dtype and device are those of the products.
        count: of eigenvalues, at least 1; of a smaller matrix, there are P.
        tolerance: of the residual ‖A x - λ x‖, relative to |λ|. An eigenvalue that stands apart errs by much less.

    Returns:
        (count,) float64 on the CPU, the largest magnitude first, and zero what rounding could have made. nan, with a
        warning, if a product is not finite or 100 restarts do not suffice.
    """
    count = min(count, len(start))

    def checked(vector: Tensor) -> Tensor:
        image = product(vector)
        if not image.isfinite().all():
            raise FloatingPointError("a product with the Hessian is not finite")
        return image

    try:
        values = _spectrum(checked, start, count, tolerance)
    except (FloatingPointError, ArpackError) as error:
        warnings.warn(f"the Hessian's eigenvalues are not known: {error}", stacklevel=2)
        return torch.full((count,), torch.nan, dtype=torch.float64)
    values = values[np.argsort(-np.abs(values), kind="stable")[:count]]
    rounding = torch.finfo(start.dtype).eps * abs(values[0])
    return torch.from_numpy(np.where(np.abs(values) <= rounding, 0, values)).double()


def _spectrum(product: Callable[[Tensor], Tensor], start: Tensor, count: int, tolerance: float) -> NDArray[Any]:
    """All eigenvalues of a small matrix, the ``count`` largest of another, in any order."""
    size = len(start)
    if size <= max(SMALL, 2 * count):
        rows = torch.stack([product(row) for row in torch.eye(size, dtype=start.dtype, device=start.device)])
        dense: NDArray[Any] = torch.linalg.eigvalsh(rows.double().cpu()).numpy()
        return dense
    if not product(start).any():  # which ARPACK takes for an error
        return np.zeros(count)

    def multiply(vector: NDArray[Any]) -> NDArray[Any]:
        return product(torch.from_numpy(vector.ravel()).to(start)).cpu().numpy()

    first = start.cpu().numpy()
    matrix = LinearOperator((size, size), matvec=multiply, dtype=first.dtype)
    settings = {"v0": first, "tol": tolerance, "maxiter": RESTARTS, "return_eigenvectors": False}
    values: NDArray[Any] = eigsh(matrix, count, which="LM", **settings)
    return values


def hessian_product(loss: Tensor, parameters: Sequence[Tensor], vector: Tensor) -> Tensor:
    """The Hessian of a loss times a vector, by differentiating twice (Pearlmutter, 1994).

    Args:
        loss: a scalar with its graph.
        parameters: of P entries together; one that the loss does not depend on counts as zero.
        vector: (P,).

    Returns:
        (P,).
    """
    gradient = _flat(torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True))
    if not gradient.requires_grad:  # of a loss that is linear
        return torch.zeros_like(vector)
    return _flat(torch.autograd.grad(gradient @ vector, parameters, materialize_grads=True))


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def normalized_by_filter(direction: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """A direction whose every filter is as long as the model's (Li et al., 2018, Section 4).

    Networks that compute the same at other scales then show the same surface.

    Args:
        direction: tensors of the shapes of the weights.
        weights: of the model. A filter is an entry of the first dimension: of a Linear, a row.

    Returns:
        Likewise; zero where the weights have one dimension (biases, normalisation), or a filter is zero.
    """
    normalized = []
    for part, weight in zip(direction, weights, strict=True):
        if weight.ndim < 2:
            normalized.append(torch.zeros_like(weight))
            continue
        rows, lengths = part.flatten(1), weight.flatten(1).norm(dim=1, keepdim=True)
        unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        normalized.append((unit * lengths).view_as(weight))
    return normalized


def random_directions(weights: Sequence[Tensor], seed: int) -> tuple[Tensor, Tensor]:
    """Two directions (P,), drawn by the seed alone and normalised by filter: models of one network share the draw."""
    draw = generator(seed, "surface")

    def one() -> Tensor:
        normal = [torch.randn(weight.shape, generator=draw, dtype=weight.dtype).to(weight) for weight in weights]
        return _flat(normalized_by_filter(normal, weights))

    return one(), one()


def surface(
    loss: Callable[[Tensor], float], params: Tensor, directions: tuple[Tensor, Tensor], steps: Sequence[float]
) -> NDArray[np.float64]:
    """The loss on a grid around a model.

    Args:
        loss: of parameters (P,).
        params: (P,) of the model.
        directions: two of (P,).
        steps: n along each.

    Returns:
        (n, n): [i, j] is the loss at params + steps[i] · directions[0] + steps[j] · directions[1].
    """
    one, two = directions
    return np.array([[loss(params + i * one + j * two) for j in steps] for i in steps], dtype=np.float64)


class TrainingLoss:
    """The client module's training loss over some of the clients' training examples: see :func:`training_loss`.

    Args:
        orchestrator: while a fit lasts.
        batches: pairs of a batch on the device and its number of examples.
    """

    def __init__(self, orchestrator: Server, batches: Sequence[tuple[Any, int]]) -> None:
        self._orchestrator, self._batches = orchestrator, batches
        self._examples = sum(size for _, size in batches)

    def at(self, params: Tensor) -> float:
        """The mean over the examples at some parameters (P,)."""
        with self._orchestrator.at(params), torch.no_grad():
            return float(sum(share * loss.double() for share, loss in self._losses()))

    def hessian_product(self, vector: Tensor) -> Tensor:
        """Its Hessian at the present parameters times a vector (P,)."""
        parameters = [p for p in self._orchestrator.client.parameters() if p.requires_grad]
        total = torch.zeros_like(vector)
        with torch.enable_grad():
            for share, loss in self._losses():
                total += share * hessian_product(loss, parameters, vector)
        return total

    def _losses(self) -> Iterator[tuple[float, Tensor]]:
        """Each batch's share of the examples, and its loss in full precision."""
        orchestrator = self._orchestrator
        for batch, size in self._batches:
            # The Trainer's context is there for 64-true, whose new tensors are float64; autocast is switched off again.
            full = torch.autocast(orchestrator.device.type, enabled=False)
            with orchestrator.trainer.precision_plugin.train_step_context(), full:
                loss = orchestrator.training_loss(batch)
            yield size / self._examples, loss


@contextmanager
def training_loss(orchestrator: Server, examples: int) -> Iterator[TrainingLoss]:
    """The global model's training loss, to be measured by a monitor: it leaves no trace.

    The module is in evaluation mode: dropout is off, and BatchNorm goes by its running statistics, as when the global
    model predicts. The examples are drawn by the seed, each of all clients' alike, and are the same in every round.
    They are not augmented by the data module's transfer hooks; what rules add to the loss does not count. All is in the
    model's own precision, without autocast (on a GPU, in TF32 where PyTorch is set so).

    Args:
        orchestrator: in one of the server's hooks.
        examples: how many; all, if there are fewer.
    """
    client = orchestrator.client
    with (
        orchestrator.server_side("curvature"),
        evaluating(client),
        in_use(spare_metrics(client)),
        sdpa_kernel(SDPBackend.MATH),  # the other attention kernels have no second derivative
    ):
        yield TrainingLoss(orchestrator, list(_sample(orchestrator, examples)))


def _sample(orchestrator: Server, examples: int) -> Iterator[tuple[Any, int]]:
    data = orchestrator.data
    seed_globals(derive(orchestrator.seed, "curvature"), orchestrator.device)  # for data sets that transform at random
    every: ConcatDataset[Any] = ConcatDataset([data.client_dataset(k) for k in data.sizes.nonzero().flatten().tolist()])
    drawn = torch.randperm(len(every), generator=orchestrator.generator("curvature"))[:examples].tolist()
    for begin in range(0, len(drawn), data.batch_size):
        rows = drawn[begin : begin + data.batch_size]
        # A plain list, which transfer hooks do not augment; on the device once, so that every evaluation sees the same.
        yield orchestrator.prepare_batch(default_collate([every[row] for row in rows])), len(rows)


def check_module(name: str, orchestrator: Any) -> None:
    """Refuse a module whose loss a monitor cannot measure.

    Raises:
        ConfigurationError: it steps its optimizers itself.
    """
    module = orchestrator.client
    if not module.automatic_optimization:
        raise ConfigurationError(
            f"{name} needs a training_step that only returns the loss, but {type(module).__name__} optimizes by hand "
            f"(automatic_optimization = False): remove {name}"
        )
