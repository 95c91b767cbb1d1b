"""Exact averages of adapters against a loop in plain PyTorch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lib.adapted import LAYERS, SIZES, Adapted, Data, average, by_hand, exact, fitted, put_in, trained_once, weights
from lib.toy import trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, FederatedOrchestrator, Server
from fl_lightning.callbacks import (
    IFCA,
    AggregationError,
    Bulyan,
    CentredClipping,
    ClientDP,
    CoordinateMedian,
    Ditto,
    FedADMM,
    FedAvg,
    FedAvgM,
    FedExLoRA,
    FedExP,
    FLoRA,
    GlobalWeightShrinking,
    HetLoRA,
    LocalPart,
    NormClipping,
    ScalingAttack,
    TrimmedMean,
)

SHARES = torch.tensor(SIZES).double() / sum(SIZES)


def test_fedexlora_is_the_mean_of_products() -> None:
    made = fitted(FedExLoRA(), AggregationError())
    expected = by_hand(exact)
    for own, other in zip(weights(made.client.network), weights(expected), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12)
    assert float(made.fitted_by.callback_metrics["adapter/aggregation_error"]) < 1e-12


def test_flora_puts_the_products_into_the_frozen_weights_and_begins_anew() -> None:
    """After one round, the weights are those of FedExLoRA; then A is drawn again, and B is zero."""
    made, other = fitted(FLoRA(), AggregationError(), rounds=1), fitted(FedExLoRA(), rounds=1)
    for own, expected in zip(weights(made.client.network), weights(other.client.network), strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-12)
    layer = made.client.network.get_submodule("0")
    assert not layer.lora_B["default"].weight.any()
    drawn = layer.lora_A["default"].weight
    assert not torch.equal(drawn, Adapted().network.get_submodule("0").lora_A["default"].weight)
    assert 0.2 < float(drawn.abs().max()) <= 0.5  # 1 / √4
    assert float(made.fitted_by.callback_metrics["adapter/aggregation_error"]) < 1e-12
    again = fitted(FLoRA(), rounds=1)
    assert torch.equal(again.params, made.params)


def test_flora_leaves_a_frozen_b_as_it_is() -> None:
    """The product is zero all the same, as A is; a frozen B of zeros would never learn again."""
    module = Adapted(freeze=("*.lora_B.*",))
    with torch.no_grad():
        for name in LAYERS:
            module.network.get_submodule(name).lora_B["default"].weight.fill_(0.5)
    made = fitted(FLoRA(), module=module, rounds=1)
    for name in LAYERS:
        layer = made.client.network.get_submodule(name)
        assert (layer.lora_B["default"].weight == 0.5).all()
        assert not layer.lora_A["default"].weight.any()


Made = tuple[Tensor, Tensor]  # updates (K, P), and weights (K,)


def clipped(updates: Tensor) -> Made:
    return updates * (0.05 / updates.norm(dim=1)).clamp(max=1)[:, None], SHARES


def attacked(updates: Tensor, attacker: int) -> Made:
    forged = updates.clone()
    forged[attacker] *= 50
    return clipped(forged)


def halved(updates: Tensor) -> Made:
    """Half of the weights are at the first model, which has not moved."""
    return torch.cat([updates, torch.zeros_like(updates[:1])]), torch.cat([SHARES / 2, torch.tensor([0.5]).double()])


class Halved(FederatedCallback):
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.replace(weights=cohort.weights / 2)


OTHERS: dict[str, tuple[Callable[[], list[Any]], Callable[[Tensor], list[Made]]]] = {
    "uniform": (
        lambda: [FedAvg("uniform")],
        lambda updates: [(updates, torch.full((3,), 1 / 3, dtype=torch.float64))],
    ),
    "clipping": (lambda: [NormClipping(0.05)], lambda updates: [clipped(updates)]),
    "attack": (  # by whichever client
        lambda: [ScalingAttack(1, 50.0), NormClipping(0.05)],
        lambda updates: [attacked(updates, client) for client in range(3)],
    ),
    "half of the weight": (lambda: [Halved()], lambda updates: [halved(updates)]),
}


@pytest.mark.parametrize("rule", [FedExLoRA, FLoRA])
@pytest.mark.parametrize("name", OTHERS)
def test_the_products_are_of_what_other_rules_have_made(rule: Any, name: str) -> None:
    """The weights have the mean of the products of the corrected adapters, computed one by one in plain PyTorch."""
    others, corrected = OTHERS[name]
    module = Adapted()
    for layer in LAYERS:
        nn.init.normal_(module.network.get_submodule(layer).lora_B["default"].weight, 0, 0.3)
    networks = trained_once(module)
    names = [name for name, own in module.network.named_parameters() if own.requires_grad]

    def vector(network: Any) -> Tensor:
        return torch.cat([network.get_parameter(name).detach().flatten() for name in names])

    start = vector(module.network)
    updates = torch.stack([vector(network) - start for network in networks])
    made = fitted(*others(), rule(), module=copy.deepcopy(module), rounds=1)
    distances = []
    for rows, shares in corrected(updates):
        expected = [torch.zeros_like(weight) for weight in weights(module.network)]
        for row, share in zip(rows, shares, strict=True):
            network = copy.deepcopy(module.network)
            nn.utils.vector_to_parameters(start + row, [network.get_parameter(name) for name in names])
            for total, weight in zip(expected, weights(network), strict=True):
                total += share * weight
        pairs = zip(expected, weights(made.client.network), strict=True)
        distances.append(max(float((one - other).abs().max()) for one, other in pairs))
    assert min(distances) < 1e-12


def test_a_matrix_whose_memory_is_transposed() -> None:
    def transposed() -> Adapted:
        module = Adapted()
        for name in LAYERS:
            weight = module.network.get_submodule(name).lora_A["default"].weight
            weight.data = weight.data.T.contiguous().T
        return module

    made, expected = fitted(FedExLoRA(), module=transposed()), by_hand(exact)
    for own, other in zip(weights(made.client.network), weights(expected), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", [FedExLoRA, FLoRA])
def test_a_layer_with_a_second_adapter_is_averaged_as_without_the_rule(rule: Any) -> None:
    """The other layer has the mean of the products, and the measure counts what the first one loses."""

    def module() -> Adapted:
        made = Adapted()
        put_in(made.network, ["0"], "other", rank=1)
        made.network.get_submodule("0").set_adapter(["default", "other"])
        made.network.get_submodule("2").set_adapter("default")  # which peft has switched off
        for name, parameter in made.network.named_parameters():
            parameter.requires_grad_(".default." in name)
            if "lora_B" in name:
                nn.init.normal_(parameter, 0, 0.3, generator=torch.Generator().manual_seed(len(name)))
        return made

    line = "leaves out adapters, which are averaged as without it: network.0 has 2 adapters"
    with pytest.warns(match=f"{rule.__name__} {line}"):
        made = fitted(rule(), AggregationError(), module=module(), rounds=1)
    start, networks = module(), trained_once(module())
    products = []
    for name in LAYERS:
        deltas = [added(network.get_submodule(name)) for network in networks]
        products.append(sum(share * delta for share, delta in zip(SHARES, deltas, strict=True)))
    averaged = copy.deepcopy(start.network)
    with torch.no_grad():
        average(averaged, networks, SHARES)
    mean = added(averaged.get_submodule("0"))
    first, second = (made.client.network.get_submodule(name) for name in LAYERS)
    torch.testing.assert_close(added(first), mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(first.base_layer.weight, start.network.get_submodule("0").base_layer.weight)
    was = start.network.get_submodule("2").base_layer.weight
    torch.testing.assert_close(second.base_layer.weight + added(second), was + products[1], rtol=0, atol=1e-12)
    lost = float((products[0] - mean).norm()) / float(torch.cat([part.flatten() for part in products]).norm())
    found = float(made.fitted_by.callback_metrics["adapter/aggregation_error"])
    assert found == pytest.approx(lost, rel=1e-6)
    assert lost > 1e-3


def added(layer: Any) -> Tensor:
    """Return what all active adapters add to a layer's weight."""
    return sum(layer.get_delta_weight(key) for key in layer.active_adapters).detach()  # type: ignore[no-any-return]


class Moves(FederatedCallback):
    """Changes the new model itself."""

    def refine(self, orchestrator: Server, cohort: Cohort) -> None:
        orchestrator.params.mul_(0.5)


class Added(FederatedCallback):
    """Adds to the sum of updates, which no declaration says."""

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.plus(torch.ones_like(cohort.anchor))


SOMETHING_ELSE = "makes the new model of something else than the weighted sum of their updates: leave {0} or"


@pytest.mark.parametrize("rule", [FedExLoRA, FLoRA])
@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: TrimmedMean(0.34), SOMETHING_ELSE),
        (CoordinateMedian, SOMETHING_ELSE),
        (lambda: CentredClipping(0.05), SOMETHING_ELSE),
        (lambda: Bulyan(0), SOMETHING_ELSE),
        (lambda: GlobalWeightShrinking(0.5), SOMETHING_ELSE),
        (FedExP, SOMETHING_ELSE),
        (FedAvgM, SOMETHING_ELSE),
        (IFCA, SOMETHING_ELSE),
        (FedADMM, "with FedADMM they send something else than what they have learned"),
        (Moves, "Moves changes the new model before: list Moves after"),
        (Added, "but a rule adds to the weighted sum of their updates, or shrinks it"),
        (FLoRA, "so does F"),
    ],
)
def test_what_makes_the_model_of_something_else_is_refused(rule: Any, make: Any, line: str) -> None:
    other = make() if make is not FLoRA or rule is FedExLoRA else FedExLoRA()
    with pytest.raises(ConfigurationError, match=f"{line.format(type(other).__name__)}"):
        fitted(other, rule())


@pytest.mark.parametrize(
    "settings",
    [
        {"server_optimizer": lambda params: torch.optim.SGD(params, lr=0.5)},
        {"server_optimizer": lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.9)},
        {"server_optimizer": lambda params: torch.optim.Adam(params, lr=1.0)},
        {"server_scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)},
    ],
)
def test_a_server_that_does_more_than_add_the_update_is_refused(settings: dict[str, Any]) -> None:
    made = FederatedOrchestrator(Adapted(), **settings)
    with pytest.raises(
        ConfigurationError, match="the server does more with the mean update than to add it: leave model"
    ):
        trainer(FedExLoRA(), rounds=1).fit(made, datamodule=Data())


@pytest.mark.parametrize(
    ("rules", "module", "line"),
    [
        (
            [FedExLoRA()],
            Adapted(adapted=False),
            "FedExLoRA needs adapters of peft on linear layers, but Adapted has none",
        ),
        ([FLoRA(), LocalPart(["*.lora_B.*"])], Adapted(), "a part of network.0 stays with them: leave out FLoRA"),
        ([HetLoRA([1, 3])], Adapted(), "ranks must be at most the adapters' rank 2, got 3"),
        ([FLoRA(), Ditto(0.1)], Adapted(), "Ditto keeps adapters that FLoRA starts anew: leave Ditto or FLoRA out"),
        ([FedExLoRA(), ClientDP(1.0, noise_multiplier=1.0)], Adapted(), "FedExLoRA"),
        ([ClientDP(1.0, noise_multiplier=1.0), FLoRA()], Adapted(), "FLoRA"),
        ([ClientDP(1.0, noise_multiplier=1.0), HetLoRA([1])], Adapted(), "HetLoRA"),
    ],
)
def test_refused(rules: list[Any], module: LightningModule, line: str) -> None:
    with pytest.raises(ConfigurationError, match=line):
        fitted(*rules, module=module)


def test_ranks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"ranks must be a list of whole numbers of at least 1, got \[\]"):
        HetLoRA([])
