"""LowRank: an adapter of LoRA as peft puts it into a layer, and the matrices that clients make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from fl_lightning import Cohort, ConfigurationError, Server
from fl_lightning.engine.hosting.adapted import adapted_layers, known_class
from fl_lightning.models.adapters import transposed_linear

LORA = "peft.tuners.lora.layer"
PRODUCTS = ("Linear", "Embedding", "Conv1d", "Conv2d", "Conv3d", "MultiheadAttention")  # layers that add some B A
SHOWN = 3  # layers that a line names
Pair = tuple[Tensor, Tensor]  # (…, r, in) and (…, out, r), float64, on the CPU


@dataclass(frozen=True)
class LowRank:
    """Names an adapter: it adds ``scaling`` · B A to the frozen weight of a layer, B (out, r) and A (r, in).

    Attributes:
        name: the layer's name in the client module.
        scaling: the factor of the product.
        parameters: A and B of the module; of a convolution, with more than two dimensions.
        is_transposed: whether the frozen weight lies as (in, out), as GPT-2's do.
    """

    name: str
    scaling: float
    parameters: tuple[nn.Parameter, nn.Parameter]
    is_transposed: bool = False

    @property
    def weight(self) -> str:
        """The name of the frozen weight of a linear layer."""
        return f"{self.name}.base_layer.weight"

    def as_weight(self, product: Tensor) -> Tensor:
        """Turn a product (out, in) as the frozen weight lies."""
        return product.T if self.is_transposed else product

    @property
    def factors(self) -> Pair:
        """A (r, in) and B (out, r) of the global model; copies."""
        first, second = (own.detach().to("cpu", torch.float64, copy=True).flatten(1) for own in self.parameters)
        return first, second

    def columns(self, orchestrator: Server) -> tuple[Tensor | None, Tensor | None]:
        """Return the columns that the entries of A (r, in) and B (out, r) have in (P,) vectors; None for a frozen one.

        The vectors hold a parameter in the order of its memory, which may be transposed.
        """
        names = {id(own): name for name, own in zip(orchestrator.flat.names, orchestrator.flat.parameters, strict=True)}
        found = []
        for parameter in self.parameters:
            if id(parameter) in names:
                start = orchestrator.columns_of(names[id(parameter)]).start
                inside = torch.arange(parameter.numel()).as_strided(parameter.shape, parameter.stride())
                found.append((start + inside).flatten(1))
            else:
                found.append(None)
        return found[0], found[1]

    def of_clients(self, orchestrator: Server, cohort: Cohort, updates: Callable[[Tensor], Tensor]) -> Pair:
        """Return A (K, r, in) and B (K, out, r) of a cohort's clients.

        Args:
            orchestrator: the orchestrator.
            cohort: the cohort.
            updates: returns some columns (K, b) of the clients' updates, given their indices (b,):
                ``cohort.columns`` after the rules' corrections, ``cohort.updates.columns_at`` before.
        """
        both = []
        for columns, own in zip(self.columns(orchestrator), self.factors, strict=True):
            if columns is None:
                both.append(own.expand(len(cohort.clients), *own.shape))
                continue
            indices = columns.flatten()
            start = cohort.anchor[indices.to(cohort.anchor.device)].double().cpu()
            both.append((start + updates(indices)).view(-1, *own.shape))
        return both[0], both[1]


@dataclass(frozen=True)
class Adapters:
    """Sorts the adapters of a module by what is known of them.

    Attributes:
        exact: adapters that each add B A to the one weight of one linear layer, and nothing else.
        products: all layers that add a known product, or the sum of several, each with its adapters; those of
            ``exact``, too.
        left_out: names of the layers that are not in ``exact``, each with the reason.
        unknown: names of the layers that are not in ``products``, each with the reason.
    """

    exact: list[LowRank]
    products: list[list[LowRank]]
    left_out: dict[str, str]
    unknown: dict[str, str]

    @classmethod
    def of(cls, module: nn.Module) -> Adapters:
        """Look at all layers of a module around which peft has put adapters."""
        exact = list[LowRank]()
        products = list[list[LowRank]]()
        left_out = dict[str, str]()
        unknown = dict[str, str]()
        uses = _uses(module)
        inner = set[nn.Module]()  # parts of layers with adapters
        for name, layer in adapted_layers(module):
            nested = "lies within another layer with adapters" if layer in inner else ""
            inner.update(layer.modules())
            if reason := _why_unknown(layer):
                unknown[name] = reason
                left_out[name] = reason
                continue
            adapters = _products_of(name, layer)
            if adapters:
                products.append(adapters)
            if reason := nested or _why_not_exact(layer, uses):
                left_out[name] = reason
            else:
                exact += adapters
        return cls(exact, products, left_out, unknown)


def _why_unknown(layer: Any) -> str:
    """Say why what peft's layer adds is not a known sum of products B A; "" if it is one."""
    if not _is_of(layer, *PRODUCTS):
        return f"is {type(layer).__name__} of {type(layer).__module__}"
    if getattr(layer, "lora_variant", None) or len(layer.lora_magnitude_vector):
        return "is a variant of LoRA, such as DoRA"
    if layer.merged:
        return "has its adapter merged into its weight"
    if getattr(layer.get_base_layer(), "groups", 1) != 1:
        return "is a convolution in groups"
    return ""


def _products_of(name: str, layer: Any) -> list[LowRank]:
    """Find the adapters of peft's layer that are in use."""
    transposed = transposed_linear()
    is_transposed = transposed is not None and isinstance(layer.base_layer, transposed)
    adapters = list[LowRank]()
    for key in () if layer.disable_adapters else layer.active_adapters:
        scaling = layer.scaling.get(key)
        if key in layer.lora_A:
            pair = layer.lora_A[key].weight, layer.lora_B[key].weight
            adapters.append(LowRank(name, scaling, pair, is_transposed))
        elif key in layer.lora_embedding_A:
            adapters.append(LowRank(name, scaling, (layer.lora_embedding_A[key], layer.lora_embedding_B[key])))
    return adapters


def _why_not_exact(layer: Any, uses: Counter[int]) -> str:
    """Say why a layer of which the product is known is more than one B A on one linear layer; "" if it is just that.

    Args:
        layer: peft's layer.
        uses: see :func:`_uses`.
    """
    if not _is_of(layer, "Linear"):
        return f"is of type {type(layer).__name__}"
    keys = [*layer.lora_A]
    if len(keys) != 1:
        return f"has {len(keys)} adapters"
    if layer.disable_adapters or list(layer.active_adapters) != keys:
        return "has its adapter switched off"
    base, first, second = layer.base_layer, layer.lora_A[keys[0]], layer.lora_B[keys[0]]
    if not _is_plain(base, nn.Linear, transposed_linear()):
        return f"has adapters around a {type(base).__name__} that does more than a linear layer"
    if not (_is_plain(first, nn.Linear) and _is_plain(second, nn.Linear)) or second.bias is not None:
        return "has matrices that do more than multiply"
    weight = base.weight
    if type(weight) is not nn.Parameter or not weight.is_floating_point():
        return "has a weight in a form of its own"
    if weight.requires_grad:
        return "has a weight that trains"
    if any(uses[own.data_ptr()] != 1 for own in (weight, first.weight, second.weight)):
        return "shares its weight with another layer"
    return ""


def _is_of(layer: Any, *names: str) -> bool:
    """Tell whether a layer is exactly of one of peft's classes of LoRA."""
    return type(layer) in [known_class(LORA, name) for name in names]


def _is_plain(part: nn.Module, *kinds: type | None) -> bool:
    """Tell whether a module does what its class does: no subclass, no hook, no computed weight."""
    hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
    return type(part) in kinds and not hooks and "forward" not in vars(part) and "weight" in part._parameters


def _uses(module: nn.Module) -> Counter[int]:
    """Count by how many names the memory of each parameter and buffer is known, by its address."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return Counter(tensor.data_ptr() for _, tensor in named)


def adapters_of(orchestrator: Server) -> list[LowRank]:
    """Find the adapters of the client module that each add B A to the one weight of one linear layer."""
    return Adapters.of(orchestrator.client).exact


def check_adapters(rule: object, orchestrator: Server) -> None:
    """Refuse a client module without adapters, or adapters of which a part stays with the clients; name what is left.

    Raises:
        ConfigurationError: there is no adapter on a linear layer, or the server does not see all of one.
    """
    found = Adapters.of(orchestrator.client)
    name = type(rule).__name__
    if not found.exact:
        has = f"{type(orchestrator.client).__name__} has none: set adapt to lora in the network"
        if found.left_out:
            has = f"{shown(found.left_out)}: leave {name} out, or give linear layers one adapter each"
        raise ConfigurationError(f"{name} needs adapters of peft on linear layers, but {has}")
    for adapter in found.exact:
        if is_in_part_local(adapter, orchestrator):
            raise ConfigurationError(
                f"{name} needs the whole adapters of the clients, but a part of {adapter.name} stays with them: leave "
                f"out {name}, or the rule that keeps the part"
            )
    if found.left_out:
        rank_zero_warn(f"{name} leaves out adapters, which are averaged as without it: {shown(found.left_out)}")


def shown(reasons: dict[str, str]) -> str:
    """Name the first of some layers, each with a reason, and count the others."""
    words = [f"{name} {reason}" for name, reason in [*reasons.items()][:SHOWN]]
    if len(reasons) > SHOWN:
        words.append(f"and {len(reasons) - SHOWN} more")
    return ", ".join(words)


def is_in_part_local(adapter: LowRank, orchestrator: Server) -> bool:
    """Tell whether a part of an adapter stays with the clients."""
    local = orchestrator.flat.local
    trained = [columns for columns in adapter.columns(orchestrator) if columns is not None]
    return any(bool(torch.isin(columns, local).any()) for columns in trained)


def shares_of(cohort: Cohort) -> Tensor:
    """Return the clients' weights (K,) in the round's mean, which sum to 1."""
    return cohort.weights / cohort.weights.sum()


def stacked(adapters: Sequence[LowRank], pairs: Sequence[Pair]) -> Pair:
    """Stack the matrices of a layer's adapters: their product is the sum of all that the adapters add.

    Args:
        adapters: J adapters of a layer.
        pairs: A (…, r_j, in) and B (…, out, r_j) of each.

    Returns:
        (…, R, in) and (…, out, R), where R is the sum of the ranks.
    """
    first = torch.cat([pair[0] for pair in pairs], -2)
    second = torch.cat([adapter.scaling * pair[1] for adapter, pair in zip(adapters, pairs, strict=True)], -1)
    return first, second


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
