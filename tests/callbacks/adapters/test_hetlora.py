"""Clients with adapters of different ranks, and with parts of adapters of their own."""

import copy

import pytest
import torch
from lib.adapted import LAYERS, Adapted, examples, fitted

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import HetLoRA, LocalPart


def test_the_first_rows_of_clients_with_lower_ranks() -> None:
    """Client 1 has rank 1: what it lacks is zero; weights are the norms of the clients' products."""
    made = fitted(HetLoRA([2, 1, 2]), rounds=1)
    module = Adapted()
    products, factors = [], []
    for client in range(3):
        own = copy.deepcopy(module)
        pairs = [
            (layer.lora_A["default"].weight, layer.lora_B["default"].weight)
            for layer in map(own.network.get_submodule, LAYERS)
        ]
        optimizer = own.configure_optimizers()
        for step in range(3):
            with torch.no_grad():
                for first, second in pairs if client == 1 else ():
                    first[1:] = 0
                    second[:, 1:] = 0
            if step < 2:
                optimizer.zero_grad()
                own.training_step(examples(client), 0).backward()
                optimizer.step()
        factors.append([tensor.detach() for pair in pairs for tensor in pair])
        products.append(sum(float((second @ first).square().sum()) for first, second in pairs) ** 0.5)
    shares = torch.tensor(products) / sum(products)
    for at, name in enumerate(made.flat.names):
        order = [name for layer in LAYERS for name in (f"{layer}.lora_A", f"{layer}.lora_B")]
        place = next(place for place, known in enumerate(order) if known in name)
        mean = sum(share * own[place] for share, own in zip(shares, factors, strict=True))
        torch.testing.assert_close(made.split(made.params)[at], mean, rtol=0, atol=1e-7)


def test_parts_by_patterns() -> None:
    """FedSA-LoRA: the clients' B stay with them; the global model's are never trained."""
    made = fitted(LocalPart(["*.lora_B.*"]))
    for name, part in zip(made.flat.names, made.split(made.params), strict=True):
        assert bool(part.any()) == ("lora_A" in name)
    with pytest.raises(ConfigurationError, match=r"submodule '\*\.lora_C\.\*': did you mean '\*\.lora_"):
        fitted(LocalPart(["*.lora_C.*"]))
