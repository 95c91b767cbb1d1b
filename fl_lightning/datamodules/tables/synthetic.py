"""Synthetic: clients whose inputs and whose labels differ by given amounts."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.datamodules.base.settings import Generated, Unpack
from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.datamodules.partition.steps.shares import Floats
from fl_lightning.errors import ConfigurationError, check_at_least, check_not_negative, check_within
from fl_lightning.seeding import numpy_generator

FEATURES, CLASSES = 60, 10
SPREAD = np.arange(1, FEATURES + 1) ** -0.6  # (60,) standard deviations of the inputs: the variances are j^-1.2
FEWEST = 50  # examples that every client has beside the log-normal number
Examples = tuple[Floats, Ints]


class Synthetic(LabelledData):
    """Generated clients whose models differ by ``alpha`` and inputs by ``beta`` (FedProx: Li et al., 2020, Sec. 5.1).

    Client k draws u_k from N(0, alpha²) and B_k from N(0, beta²); then each entry of its weights W_k (10, 60) and of
    its biases b_k (10,) from N(u_k, 1), and of its inputs' mean v_k (60,) from N(B_k, 1). Its inputs x (60,) are drawn
    from N(v_k, Σ), where Σ is diagonal with the entries j^-1.2, j from 1 to 60; their classes are argmax(W_k x + b_k).
    A client has 50 examples and a log-normal number more, whose logarithm has mean 4 and standard deviation 2, rounded
    down: half of the clients have 104 or fewer, and some have thousands. The last tenth are its test examples.

    The paper says that alpha and beta are variances. The authors' code (litian96/FedProx), by which the paper's results
    are made, takes them for standard deviations, and so does this class; for 0 and 1, both are the same. The data
    called synthetic of the LEAF benchmark come from another generator.

    The test set is that of all clients together. Each client's name is that in the authors' files: ``f_00000``, ….

    Args:
        alpha: standard deviation of u_k, at least 0; the larger, the more the clients' models differ.
        beta: standard deviation of B_k, at least 0; the larger, the more the clients' inputs differ.
        num_clients: N, the number of clients, and of those of a ``partition``; a client's data do not depend on it.
        iid: whether all clients share one W and b, drawn from N(0, 1), and have inputs of mean 0 (the paper's
            Synthetic-IID); alpha and beta must then be 0.
        test_share: share of each client's examples that it tests on, in (0, 1); the training examples are rounded down.
        data_seed: seed of the data; all seeds of a run have the same data.
        labelled: ``partition``, ``held_out``, ``seed`` and the other arguments of :class:`LabelledData`.

    Raises:
        ConfigurationError: an argument is outside its range.
    """

    num_classes = CLASSES

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 1.0,
        num_clients: int = 30,
        iid: bool = False,
        test_share: float = 0.1,
        data_seed: int = 0,
        **labelled: Unpack[Generated],
    ) -> None:
        super().__init__(num_clients=num_clients, **labelled)
        check_not_negative(alpha=alpha, beta=beta)
        check_within("(0, 1)", test_share=test_share)
        check_at_least(0, data_seed=data_seed)
        if iid and (alpha, beta) != (0, 0):
            raise ConfigurationError(
                f"expected alpha and beta to be 0 for iid clients, got {alpha} and {beta}: set both to 0"
            )
        self.alpha, self.beta, self.iid = alpha, beta, iid
        self.test_share, self.data_seed = test_share, data_seed
        self.generated = num_clients

    @override
    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        inputs = np.concatenate([part[0] for part in self._parts(train)])
        labels = np.concatenate([part[1] for part in self._parts(train)])
        return torch.from_numpy(inputs).to(torch.get_default_dtype()), torch.from_numpy(labels)

    def clients(self, train: bool) -> Sequence[str]:
        """Return the name (n,) of each example's client, in the training or in the test set."""
        names: list[str] = []
        for client, (_, labels) in enumerate(self._parts(train)):
            names += [f"f_{client:05d}"] * len(labels)
        return names

    def _parts(self, train: bool) -> list[Examples]:
        """Return the training or the test examples of each client."""
        parts: list[Examples] = []
        for inputs, labels in self._drawn:
            cut = int((1 - self.test_share) * len(labels))
            part = slice(cut) if train else slice(cut, None)
            parts.append((inputs[part], labels[part]))
        return parts

    @cached_property
    def _drawn(self) -> list[Examples]:
        """All examples of each client."""
        shared = draw_model(0, numpy_generator(self.data_seed, "synthetic, shared"))
        drawn: list[Examples] = []
        for client in range(self.generated):
            generator = numpy_generator(self.data_seed, "synthetic", client)
            size = FEWEST + int(generator.lognormal(4, 2))
            weights, bias = shared if self.iid else draw_model(self.alpha, generator)
            mean = np.zeros(FEATURES) if self.iid else draw_mean(self.beta, generator)
            inputs = generator.normal(mean, SPREAD, (size, FEATURES))
            drawn.append((inputs, (inputs @ weights.T + bias).argmax(axis=1)))
        return drawn


def draw_model(alpha: float, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw the weights (10, 60) and biases (10,) of a client, around a mean from N(0, alpha²)."""
    mean = generator.normal(0, alpha)
    return generator.normal(mean, 1, (CLASSES, FEATURES)), generator.normal(mean, 1, CLASSES)


def draw_mean(beta: float, generator: np.random.Generator) -> Floats:
    """Draw the mean (60,) of a client's inputs, around a number from N(0, beta²)."""
    return generator.normal(generator.normal(0, beta), 1, FEATURES)
