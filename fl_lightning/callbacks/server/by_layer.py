"""Steps in which the clients' updates have other weights in each layer."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fl_lightning import Cohort, gram_of_mixed


def grams(cohort: Cohort, sizes: Sequence[int]) -> Iterator[Tensor]:
    """Yield the inner products (K, K) of the corrected updates in each layer, given the layers' sizes, with sum P."""
    stop = 0
    for size in sizes:
        start = stop
        stop += size
        yield gram_of_mixed(cohort.updates.gram(start, stop), cohort.mixing)


def combine(cohort: Cohort, sizes: Sequence[int], coefficients: Tensor) -> Tensor:
    """Return the (P,) sum of the original updates, of which each layer has coefficients of its own.

    Two updates, the first of which counts in the first column, and the second in the others:

    >>> import torch
    >>> from fl_lightning import ClientResult, Cohort
    >>> from fl_lightning.callbacks.server.by_layer import combine
    >>> deltas = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> results = [ClientResult(k, num_samples=1, num_steps=1, loss=0.0, normalizer=1.0) for k in range(2)]
    >>> cohort = Cohort.collect(round=1, anchor=torch.zeros(3), deltas=deltas, results=results)
    >>> combine(cohort, sizes=[1, 2], coefficients=torch.eye(2).double())
    tensor([1., 5., 6.])

    Args:
        cohort: the cohort; its updates are read one by one.
        sizes: number of parameters of each of the L layers, with sum P.
        coefficients: (L, K) coefficients.
    """
    step = torch.zeros_like(cohort.anchor)
    lengths = torch.tensor(sizes, device=step.device)
    for update, factors in zip(cohort.rows(), coefficients.T, strict=True):
        step += factors.to(update).repeat_interleave(lengths) * update
    return step
