"""LowRank: an adapter of LoRA as peft puts it into a layer, and the matrices that clients make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning import Cohort, ConfigurationError, Server

FACTORS = ("lora_A", "lora_B")  # of peft


@dataclass(frozen=True)
class LowRank:
    """Names an adapter: it adds ``scaling`` · B A to the frozen weight of a layer, B (out, r) and A (r, in).

    Attributes:
        name: the layer's name in the client module.
        layer: the layer, as peft has made it.
        key: peft's name of the adapter, such as "default".
    """

    name: str
    layer: Any
    key: str

    @property
    def scaling(self) -> float:
        """The factor of the product."""
        return float(self.layer.scaling[self.key])

    @property
    def weight(self) -> str:
        """The name of the frozen weight."""
        return f"{self.name}.base_layer.weight"

    def as_weight(self, product: Tensor) -> Tensor:
        """Turn a product (out, in) as the frozen weight lies, which GPT-2 has transposed."""
        return product.T if self.layer.fan_in_fan_out else product

    @property
    def parameters(self) -> tuple[nn.Parameter, nn.Parameter]:
        """A (r, in) and B (out, r) of the module."""
        first, second = (getattr(self.layer, name)[self.key].weight for name in FACTORS)
        return first, second

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """A (r, in) and B (out, r) of the global model, float64, on the CPU; copies."""
        first, second = (parameter.detach().to("cpu", torch.float64, copy=True) for parameter in self.parameters)
        return first, second

    def columns(self, orchestrator: Server) -> tuple[slice | None, slice | None]:
        """Return the columns that A and B have in (P,) vectors; None for a frozen one."""
        found = []
        for name, parameter in zip(FACTORS, self.parameters, strict=True):
            whole = f"{self.name}.{name}.{self.key}.weight"
            found.append(orchestrator.columns_of(whole) if parameter.requires_grad else None)
        return found[0], found[1]

    def of_clients(self, orchestrator: Server, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return A (K, r, in) and B (K, out, r) of a cohort's clients, before any correction; see :attr:`factors`."""
        both = []
        for columns, own in zip(self.columns(orchestrator), self.factors, strict=True):
            if columns is None:
                both.append(own.expand(len(cohort.clients), *own.shape))
                continue
            updates: Any = cohort.updates  # single ones: who reads them does not stream
            moved = updates.columns_at(torch.arange(columns.start, columns.stop))
            both.append((cohort.anchor[columns].double().cpu() + moved).view(-1, *own.shape))
        return both[0], both[1]


def adapters_of(orchestrator: Server) -> list[LowRank]:
    """Find the adapters of the client module that add a product to a linear layer."""
    return list(adapters_in(orchestrator.client))


def adapters_in(module: nn.Module) -> Iterator[LowRank]:
    """Find the adapters of a module that add a product to a linear layer."""
    layers: Iterator[tuple[str, Any]] = module.named_modules()
    for name, layer in layers:
        for key in getattr(layer, FACTORS[0], ()):
            if getattr(layer, FACTORS[0])[key].weight.dim() == 2 and not getattr(layer, "lora_magnitude_vector", None):
                yield LowRank(name, layer, key)


def check_adapters(rule: object, orchestrator: Server) -> None:
    """Refuse a client module without adapters, or adapters of which a part stays with the clients.

    Raises:
        ConfigurationError: there is no adapter on a linear layer, or the server does not see all of one.
    """
    adapters = adapters_of(orchestrator)
    if not adapters:
        raise ConfigurationError(
            f"{type(rule).__name__} needs adapters of peft on linear layers, but {type(orchestrator.client).__name__} "
            "has none: set adapt to lora in the network"
        )
    for adapter in adapters:
        if is_in_part_local(adapter, orchestrator):
            raise ConfigurationError(
                f"{type(rule).__name__} needs the whole adapters of the clients, but a part of {adapter.name} stays "
                f"with them: leave out {type(rule).__name__}, or the rule that keeps the part"
            )


def is_in_part_local(adapter: LowRank, orchestrator: Server) -> bool:
    """Tell whether a part of an adapter stays with the clients."""
    local = orchestrator.flat.local
    trained = [columns for columns in adapter.columns(orchestrator) if columns is not None]
    return any(bool(((local >= columns.start) & (local < columns.stop)).any()) for columns in trained)


def shares_of(cohort: Cohort) -> Tensor:
    """Return the clients' weights (K,) in the round's mean, which sum to 1."""
    return cohort.weights / cohort.weights.sum()


def mean_less_product(
    shares: Tensor, first: Tensor, second: Tensor, onto: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Factor what a pair of matrices lacks of the mean of the clients' products, Σ s_k B_k A_k - B A.

    With A_k = A + a_k and B_k = B + b_k it is B Σ s_k a_k + (Σ s_k b_k) A + Σ s_k b_k a_k, whose parts are small where
    the clients agree, so that nothing is lost to rounding.

    Two clients with A = 1, B = 1 and A = -1, B = -1 have the mean 0 and 0; their products are 1, and so is their mean:

    >>> import torch
    >>> from fl_lightning.callbacks.adapters.low_rank import mean_less_product
    >>> clients = torch.tensor([1.0, -1.0]).double().view(2, 1, 1)
    >>> zero = torch.zeros(1, 1).double()
    >>> left, right = mean_less_product(torch.tensor([0.5, 0.5]).double(), clients, clients, (zero, zero))
    >>> left @ right
    tensor([[1.]], dtype=torch.float64)

    Args:
        shares: (K,) weights that sum to 1.
        first: (K, r, in) A_k.
        second: (K, out, r) B_k.
        onto: A (r, in) and B (out, r).

    Returns:
        (out, (K + 2) r) and ((K + 2) r, in), whose product it is.
    """
    a, b = onto
    apart, beside = first - a, second - b
    left = [b, torch.einsum("k,kor->or", shares, beside), *(shares[:, None, None] * beside)]
    right = [torch.einsum("k,kri->ri", shares, apart), a, *apart]
    return torch.cat(left, 1), torch.cat(right, 0)


def norm_of_product(left: Tensor, right: Tensor) -> float:
    """Compute the Frobenius norm of a product (out, R) (R, in) from two (R, R) matrices."""
    return float(((left.T @ left) * (right @ right.T)).sum().clamp(min=0).sqrt())
