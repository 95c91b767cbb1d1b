"""Flat parameters and the server's buffers, by hand."""

from typing import Any

import pytest
import torch
from lib.toy import Normalized, NormalizedData, trainer
from torch import Tensor, nn

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.engine.module.params import FlatParameters
from fl_lightning.engine.updates.buffers import average_buffers


def network() -> nn.Sequential:
    """A 2×3 weight 0 … 5 and a bias 6, 7, frozen (1,), then 8 … of a 1×2."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(1, 1, bias=False), nn.Linear(2, 1, bias=False))
    values = [
        torch.arange(6.0).reshape(2, 3),
        torch.tensor([6.0, 7.0]),
        torch.tensor([[-1.0]]),
        torch.tensor([[8.0, 9.0]]),
    ]
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.data.copy_(value)
    model[1].requires_grad_(False)
    return model


def test_vector_holds_the_trainable_parameters_in_order() -> None:
    model = network()
    flat = FlatParameters(model)
    assert flat.vector.tolist() == [float(i) for i in range(10)]
    assert [tuple(p.shape) for p in flat.parameters] == [(2, 3), (2,), (1, 2)]
    assert model[0].weight.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_columns_of_names() -> None:
    """Weight (2, 3) and bias (2,) of layer 0, then the weight (1, 2) of layer 2; layer 1 is frozen."""
    flat = FlatParameters(nn.ModuleDict({"body": network(), "body2": nn.Linear(1, 1)}))
    columns = {"body": (0, 10), "body.0": (0, 8), "body.0.bias": (6, 8), "body.2": (8, 10), "body2": (10, 12)}
    assert {name: flat.columns_of(name) for name in columns} == {name: slice(*ends) for name, ends in columns.items()}
    assert flat.vector[flat.columns_of("body.2")].tolist() == [8, 9]


@pytest.mark.parametrize("name", ["bod", "body.1", "body.0.", ""])
def test_an_unknown_name_has_no_columns(name: str) -> None:
    """A frozen layer has none, either. The message names the parameters."""
    flat = FlatParameters(nn.ModuleDict({"body": network()}))
    with pytest.raises(ConfigurationError, match=rf"got '{name}': .* body\.0\.weight, body\.0\.bias, body\.2\.weight$"):
        flat.columns_of(name)


def test_vector_and_parameters_are_one_memory() -> None:
    model = network()
    flat = FlatParameters(model)
    flat.vector.mul_(2)
    assert model[2].weight.tolist() == [[16, 18]]
    assert model[1].weight.tolist() == [[-1]]
    with torch.no_grad():
        model[0].bias.zero_()
    assert flat.vector.tolist() == [0, 2, 4, 6, 8, 10, 0, 0, 16, 18]
    views = flat.views(torch.arange(10.0))
    assert [view.tolist() for view in views] == [[[0, 1, 2], [3, 4, 5]], [6, 7], [[8, 9]]]


def test_values_survive_a_memory_format() -> None:
    """channels_last stores a (1, 2, 2, 2) weight in another order than its shape says: the vector has that order, and
    the parameter keeps its format. So it does where a dimension of one channel leaves two readings.
    """
    convolution = nn.Conv2d(2, 1, (2, 2), bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    weight = convolution.weight.detach().clone()
    flat = FlatParameters(convolution)
    assert torch.equal(convolution.weight, weight)
    assert torch.equal(flat.vector, weight.permute(0, 2, 3, 1).reshape(-1))
    assert torch.equal(flat.join([weight.contiguous()]), flat.vector)
    assert torch.equal(flat.views(flat.vector)[0], weight)
    assert convolution.weight.stride() == weight.stride()
    grey = nn.Conv2d(1, 3, (2, 2)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    stride = grey.weight.stride()
    FlatParameters(grey)
    assert grey.weight.stride() == stride


def test_parameters_that_share_memory_are_refused() -> None:
    """One after the other in one memory, as a first fit leaves them, is fine."""
    pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    FlatParameters(pair)
    FlatParameters(pair)
    pair[1].weight.data = pair[0].weight.data.T
    with pytest.raises(ConfigurationError, match=r"0.weight and 1.weight of Sequential share memory"):
        FlatParameters(pair)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_a_module_that_has_moved_gets_a_vector_there(mode: Any) -> None:
    """Another dtype stands for another device; the vector may be asked for first while the Trainer validates."""
    model = network()
    flat = FlatParameters(model)
    flat.gradient.fill_(1)
    model.double()
    with mode():
        assert flat.vector.tolist() == [float(i) for i in range(10)]
    assert flat.vector.dtype == flat.gradient.dtype == model[0].weight.dtype == torch.float64
    flat.vector.mul_(2)
    assert model[2].weight.tolist() == [[16, 18]]
    model[2].weight.sum().backward()
    with torch.no_grad():
        model[2].weight.add_(1)
    assert flat.vector.tolist()[-2:] == [17, 19]


def test_nothing_of_a_round_is_kept_after_a_fit() -> None:
    orchestrator = FederatedOrchestrator(Normalized())
    trainer(rounds=2).fit(orchestrator, datamodule=NormalizedData())
    kept = [value for held in vars(orchestrator).values() for value in (held if isinstance(held, list) else [held])]
    assert not [value for value in kept if isinstance(value, Tensor)]
    before = orchestrator.params.clone()
    with orchestrator.at(torch.zeros_like(before)):
        assert not any(parameter.any() for parameter in orchestrator.client.parameters())
    assert torch.equal(orchestrator.params, before)


def test_a_shared_parameter_counts_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    flat = FlatParameters(model)
    assert flat.vector.shape == (4,)
    flat.vector.fill_(3)
    assert model[1].weight.tolist() == [[3, 3], [3, 3]]


def test_gradient_is_one_memory_with_the_parameters_gradients() -> None:
    """The loss (w₂·(1, 2)).sum() reaches the last layer alone: 0 elsewhere."""
    model = network()
    flat = FlatParameters(model)
    (model[2].weight * torch.tensor([1.0, 2.0])).sum().backward()
    assert flat.gradient.tolist() == [0.0] * 8 + [1.0, 2.0]
    flat.gradient.add_(1)
    assert model[2].weight.grad.tolist() == [[2, 3]]
    assert model[0].bias.grad.tolist() == [1, 1]
    flat.clear_gradient()
    assert all(parameter.grad is None for parameter in model.parameters())
    (model[2].weight * torch.tensor([5.0, 7.0])).sum().backward()
    assert flat.gradient.tolist() == [0.0] * 8 + [5.0, 7.0]
    flat.set_gradient(torch.arange(10.0))
    assert model[0].weight.grad.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert model[1].weight.grad is None
    assert flat.gradient.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("model", "got"),
    [
        (nn.Linear(2, 2).half(), "torch.float16"),
        (nn.Linear(2, 2).bfloat16(), "torch.bfloat16"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "torch.float32.*torch.float64"),
    ],
)
def test_refuses_other_dtypes(model: nn.Module, got: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"{type(model).__name__} must have trainable parameters of one .*{got}"
    ):
        FlatParameters(model)


@pytest.mark.parametrize("model", [nn.Linear(2, 2).requires_grad_(False), nn.ReLU()])
def test_refuses_what_has_nothing_to_train(model: nn.Module) -> None:
    with pytest.raises(ConfigurationError, match=f"{type(model).__name__} has no trainable parameter: unfreeze what"):
        FlatParameters(model)


def test_parameters_without_a_shape_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Sequential has parameters without a shape, such as 1.weight"):
        FlatParameters(nn.Sequential(nn.Linear(1, 1), nn.LazyLinear(8)))


def merged(values: list[Any], samples: list[int], dtype: torch.dtype) -> Tensor:
    """One buffer, averaged."""
    (buffer,) = average_buffers([[torch.tensor(value, dtype=dtype)] for value in values], torch.tensor(samples))
    assert buffer.dtype == dtype
    return buffer


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float_buffers_are_averaged_by_samples(dtype: torch.dtype) -> None:
    """(1·(1, 8) + 3·(5, -4))/4 = (4, -1)."""
    assert merged([[1.0, 8.0], [5.0, -4.0]], [1, 3], dtype).tolist() == [4, -1]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_integer_buffers_take_the_maximum(dtype: torch.dtype) -> None:
    assert merged([[7, 2], [3, 9], [5, 5]], [100, 1, 1], dtype).tolist() == [7, 9]
    assert merged([4, 11], [9, 1], dtype).item() == 11


def test_bool_buffers_take_the_maximum() -> None:
    assert merged([[True, False, False], [False, False, True]], [1, 1], torch.bool).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 6e4, float("inf"), float("-inf")])
def test_what_all_clients_agree_on_stays_as_it_is(value: float, dtype: torch.dtype) -> None:
    """Attention masks hold -inf; the weights 1/7, 2/7, 4/7 do not sum to 1 in floating point."""
    assert torch.equal(merged([value] * 3, [1, 2, 4], dtype), torch.tensor(value, dtype=dtype))


def test_complex_buffers_that_agree_stay_as_they_are() -> None:
    """Rotary embeddings keep their phases as complex numbers."""
    assert merged([1 + 2j, 1 + 2j], [1, 3], torch.complex64).item() == 1 + 2j


def test_parameters_are_another_vectors_parts_for_a_while() -> None:
    model = nn.Linear(2, 1)
    flat = FlatParameters(model)
    before, point = flat.vector.clone(), torch.tensor([1.0, 2.0, 3.0])
    with flat.at(point):
        assert model.weight.tolist() == [[1, 2]]
        assert flat.vector is point
        with flat.at(2 * point):
            assert model.bias.tolist() == [6]
        assert model.bias.tolist() == [3]
    assert torch.equal(flat.vector, before)
    flat.vector.zero_()
    assert model.weight.tolist() == [[0, 0]]


def test_gradients_are_joined() -> None:
    """Missing ones count as zero, those in another memory format are read in the parameters' order."""
    convolution = nn.Conv2d(2, 1, (2, 2)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    flat = FlatParameters(convolution)
    convolution.weight.grad = torch.arange(8.0).view(1, 2, 2, 2)
    first = flat.gradient
    assert first.tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 0]
    first[0] = 9
    assert convolution.weight.grad[0, 0, 0, 0] == 9
    assert flat.gradient is first

    convolution.bias.grad = torch.ones(1)  # as after another backward pass
    second = flat.gradient
    assert second.tolist() == [9, 4, 1, 5, 2, 6, 3, 7, 1]
    convolution.bias.grad.zero_()
    assert (second[-1], first[-1]) == (0, 0)
    second.zero_()
    assert first[0] == 9
