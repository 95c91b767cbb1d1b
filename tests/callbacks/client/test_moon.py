"""MOON: the contrastive term by hand, a run against a plain loop with copies of networks, and what it keeps."""

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from command import fit_on
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from toy import Capture, Head, Quadratic, ToyData, close, trainer

from fl_lightning import ClientSampler, ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import MOON, FedDecorr, FedSAM, GradientHarmonization
from fl_lightning.callbacks.client.moon import contrastive_loss
from fl_lightning.runs.checkpoints import LastCheckpoint

Z = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
Z_GLOBAL = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
Z_PREVIOUS = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
COHORTS = [[0, 1], [1, 2], [0, 1, 2], [0, 2]]
SIZES, LR, MOMENTUM = [4, 7, 6], 0.3, 0.5


class Small(LightningModule):
    """Batch normalization between two layers, float64."""

    lr, weight_decay = LR, 0.0

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), self.lr, MOMENTUM, weight_decay=self.weight_decay)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)] if self.weight_decay else []


class Drawn(ClientSampler):
    """The cohorts above."""

    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        return torch.tensor(COHORTS[round - 1])


class Points(FederatedDataModule):
    """Three clients of random points, in two batches whose order is fixed."""

    num_clients = 3

    def __init__(self) -> None:
        super().__init__(participation=3, sampler=Drawn())

    def client_dataset(self, client: int) -> Dataset[Any]:
        draw = torch.Generator().manual_seed(client)
        x = torch.randn(SIZES[client], 3, generator=draw, dtype=torch.float64)
        return TensorDataset(x, torch.randint(3, (len(x),), generator=draw))

    def client_batches(self, client: int, order: torch.Generator) -> Iterator[list[Any]]:
        data: Any = self.client_dataset(client)
        x, y = data.tensors
        return iter([[x[:2], y[:2]], [x[2:], y[2:]]])


def fit(*rules: Any, rounds: int = len(COHORTS), module: Callable[[], Any] = Small, **settings: Any) -> Any:
    """The orchestrator after some rounds of two local epochs; ``trainer`` among the settings is for the Trainer."""
    flags = settings.pop("trainer", {})
    orchestrator = FederatedOrchestrator(module(), local_epochs=2, **{"on_bad_update": "raise", **settings})
    trainer(*rules, rounds=rounds, **flags).fit(orchestrator, datamodule=Points())
    return orchestrator


def same(one: Any, other: Any) -> bool:
    """Whether two runs end in the same parameters and buffers, bit for bit."""
    first, second = one.client.state_dict(), other.client.state_dict()
    return all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, 0.4553844511), (1.0, 0.5469903535)])
def test_two_examples(temperature: float, expected: float) -> None:
    """Cosines with the global and the previous features: (1/√2, 0) and (1/√2, 1/√2).

    log(1 + e^((0 - 1/√2)/T)) and log 2: T = 0.5 gives (log(1 + e^-√2) + log 2)/2 = (0.2176217 + 0.6931472)/2.
    """
    assert float(contrastive_loss(Z, Z_GLOBAL, Z_PREVIOUS, temperature)) == pytest.approx(expected, abs=1e-9)


def test_its_gradient() -> None:
    """Example 1: ∇cos(z, g) = (g/‖g‖ - cos z/‖z‖)/‖z‖ is (0, 1/√2) and (0, 1); σ(-√2)/T times their difference, halved.

    Example 2: (-1, 1)/(2√2) and (1, -1)/(2√2), σ(0) = 1/2: (1/2)(2)(1, -1)/√2, halved.
    """
    z = Z.clone().requires_grad_()
    contrastive_loss(z, Z_GLOBAL, Z_PREVIOUS, 0.5).backward()
    miss = 1 / (1 + math.exp(math.sqrt(2)))
    half = math.sqrt(0.5)
    assert close(z.grad, ((0.0, miss * (1 - half)), (half / 2, -half / 2)))  # type: ignore[arg-type]


def test_zero_features_have_no_direction() -> None:
    z = torch.zeros(1, 2, requires_grad=True)
    loss = contrastive_loss(z, torch.ones(1, 2), torch.zeros(1, 2), 0.5)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(2))
    assert z.grad is not None
    assert z.grad.isfinite().all()


def plain(mu: float, temperature: float, layer: int) -> tuple[nn.Module, dict[int, nn.Module]]:
    """MOON as a loop over copies of networks: the global one after the four rounds, and each client's last."""
    net, last, data = Small().net, {}, Points()
    for cohort in COHORTS:
        trained = []
        for client in cohort:
            local, fixed = copy.deepcopy(net).train(), [copy.deepcopy(net).eval()]
            if client in last:
                fixed.append(copy.deepcopy(last[client]).eval())
                fixed[1][1].load_state_dict({**last[client][1].state_dict(), **dict(net[1].named_buffers())})
            optimizer = torch.optim.SGD(local.parameters(), LR, MOMENTUM)
            for x, y in [*data.client_batches(client, torch.Generator())] * 2:
                z = local[:layer](x)
                loss = F.cross_entropy(local[layer:](z), y)
                if client in last:
                    near, far = (torch.cosine_similarity(z, other[:layer](x).detach()) for other in fixed)
                    loss = loss - mu * torch.log_softmax(torch.stack([near, far]) / temperature, 0)[0].mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            trained.append(local)
        last |= dict(zip(cohort, trained, strict=True))
        total = sum(SIZES[client] for client in cohort)
        with torch.no_grad():
            for name, value in net.state_dict().items():
                parts = [local.state_dict()[name] for local in trained]
                if value.is_floating_point():
                    value.copy_(sum(SIZES[c] / total * part for c, part in zip(cohort, parts, strict=True)))
                else:
                    value.copy_(torch.stack(parts).amax(0))
    return net, last


@pytest.mark.parametrize("layer", [None, "net.1"])
def test_four_rounds_are_those_of_a_plain_loop(layer: str | None) -> None:
    """Partial participation: client 2 comes late, and client 0 returns after a round without it."""
    rule = MOON(2.0, 0.7, layer)
    orchestrator = fit(rule)
    net, last = plain(2.0, 0.7, 3 if layer is None else 2)
    for name, value in net.state_dict().items():
        assert close(orchestrator.client.net.state_dict()[name], value), name
    assert rule.state.keys() == {"model/0", "model/1", "model/2"}
    for client, own in last.items():
        assert close(rule.state[f"model/{client}"], nn.utils.parameters_to_vector(own.parameters()).detach())
    assert not close(orchestrator.params, fit().params, 1e-4)


def test_zero_is_fedavg_bit_for_bit_and_looks_at_nothing() -> None:
    """Not even at modules in which there is nothing to look at."""
    rule = MOON(0.0)
    assert same(fit(rule), fit())
    assert not rule.state
    trainer(rule, rounds=2).fit(FederatedOrchestrator(Quadratic(), on_bad_update="raise"), datamodule=ToyData())


def test_the_first_participation_is_fedavg_bit_for_bit() -> None:
    """So the first round is; in the second one client 1 has a model to be pushed from, and client 2 has not."""
    assert same(fit(MOON(), rounds=1), fit(rounds=1))
    ours, plain = Capture(), Capture()
    fit(MOON(), ours, rounds=2)
    fit(plain, rounds=2)
    assert ours.clients[2:] == [1, 2]
    assert not close(ours.params[2], plain.params[2], 1e-4)
    assert torch.equal(ours.params[3], plain.params[3])


def test_temperature_counts() -> None:
    assert not close(fit(MOON(temperature=0.5)).params, fit(MOON(temperature=1.0)).params, 1e-4)


def test_who_is_not_drawn_keeps_its_model() -> None:
    rule = MOON()
    after = []
    for rounds in (1, 2):
        fit(rule, rounds=rounds)
        after.append({name: value.clone() for name, value in rule.state.items()})
    assert after[0].keys() == {"model/0", "model/1"}
    assert after[1].keys() == {"model/0", "model/1", "model/2"}
    assert torch.equal(after[0]["model/0"], after[1]["model/0"])
    assert not torch.equal(after[0]["model/1"], after[1]["model/1"])


class Still(Small):
    lr = 0.0


def test_batch_normalization_sees_each_batch_once() -> None:
    """Where nobody moves, the statistics depend on the passes alone."""
    assert same(fit(MOON(5.0), module=Still), fit(module=Still))


class Scheduled(Small):
    """Weight decay and a schedule."""

    weight_decay = 0.01


class Single(Small):
    """In float32, for which bfloat16 is meant."""

    def __init__(self) -> None:
        super().__init__()
        self.float()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return super().training_step([batch[0].float(), batch[1]], batch_idx)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


@pytest.mark.parametrize(
    ("module", "settings"),
    [
        (Scheduled, {}),
        (Small, {"gradient_clip_val": 0.5}),
        (Small, {"accumulate_grad_batches": 2}),
        (Single, {"trainer": {"precision": "bf16-mixed"}}),
    ],
)
def test_goes_with_what_local_training_can_be(module: Callable[[], Any], settings: dict[str, Any]) -> None:
    ours, plain = (fit(*rules, module=module, **copy.deepcopy(settings)).params for rules in ([MOON()], []))
    assert ours.isfinite().all()
    assert not close(ours, plain, 1e-4)


def test_rules_that_look_at_features_do_not_disturb_each_other() -> None:
    """MOON's other passes are not FedDecorr's features: the order of the two does not matter."""
    first, second = fit(MOON(), FedDecorr()), fit(FedDecorr(), MOON())
    assert close(first.params, second.params, 1e-12)
    for other in fit(MOON()), fit(FedDecorr()):
        assert not close(first.params, other.params, 1e-4)


def test_goes_with_gradients_at_other_points() -> None:
    """The passes at w + ε leave the batch's statistics alone: as many updates of them as FedAvg has."""
    together = fit(FedSAM(0.05), MOON())
    for other in fit(FedSAM(0.05)), fit(MOON()):
        assert not close(together.params, other.params, 1e-4)
    assert int(together.client.net[1].num_batches_tracked) == int(fit().client.net[1].num_batches_tracked)


@pytest.mark.parametrize("states", ["memory", "disk"])
def test_stop_and_resume_bit_for_bit(states: str, tmp_path: Path) -> None:
    """Stopped after round 2, before client 0 returns."""

    def run(name: str, rounds: int, resume: bool = False) -> tuple[Any, MOON]:
        rule, orchestrator = MOON(), FederatedOrchestrator(Small(), local_epochs=2, client_states=states)
        runner = trainer(
            rule,
            GradientHarmonization(),
            LastCheckpoint(),
            rounds=rounds,
            default_root_dir=tmp_path / name,
            enable_checkpointing=True,
        )
        last = tmp_path / name / "checkpoints" / "last.ckpt" if resume else None
        runner.fit(orchestrator, datamodule=Points(), ckpt_path=last)
        return orchestrator, rule

    (whole, kept), _ = run("whole", 4), run("halves", 2)
    resumed, found = run("halves", 4, resume=True)
    assert same(whole, resumed)
    assert sorted(kept.state) == sorted(found.state) == ["model/0", "model/1", "model/2"]
    assert all(torch.equal(value, found.state[name]) for name, value in kept.state.items())
    assert bool([*tmp_path.rglob("*.safetensors")]) == (states == "disk")


OWN = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10))
"""


def test_two_devices_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes: a client's last model may come from the other device."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    settings = ["--data.num_clients", "6", "--data.participation", "5", "--trainer.max_epochs", "3"]
    settings += ["--data.clients_per_batch", "1", "--data.partition.alpha", "1.0", "--model.client_states", "disk"]
    settings += ["--model.client.network", "own.Net"]
    for devices in 1, 2:
        fit_on(devices, "--experiment", f"on{devices}", *settings, config="rules/moon.yaml")
    one, two = (tmp_path / "runs" / f"on{devices}" / "version_0" for devices in "12")
    assert (one / "metrics.csv").read_text() == (two / "metrics.csv").read_text()
    models = [torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (one, two)]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


def test_zero_updates_give_no_nan() -> None:
    """The local model then is the global one and the last one: cosines of 1, and a term of log 2."""
    orchestrator = fit(MOON(), module=Still)
    assert torch.equal(orchestrator.params, nn.utils.parameters_to_vector(Still().parameters()).detach())


class Hidden(Small):
    """Without a forward."""

    forward = LightningModule.forward  # type: ignore[assignment]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])


class Labelled(Small):
    """Its batches are dicts."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch["x"], batch_idx)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return {"x": batch}


@pytest.mark.parametrize(
    ("module", "got"), [(Hidden, "Hidden.*got a module without forward"), (Labelled, "Labelled.*got dict")]
)
def test_needs_a_forward_of_the_inputs(module: Callable[[], Any], got: str) -> None:
    """Said in round 1, though nothing is compared there."""
    with pytest.raises(ConfigurationError, match=rf"a rule computes features by {got}"):
        fit(MOON(), rounds=1, module=module)


def test_needs_features() -> None:
    message = r"MOON takes the input of the last nn\.Linear as features, but Head has none"
    with pytest.raises(ConfigurationError, match=message):
        fit(MOON(), rounds=1, module=Head)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mu": -1.0}, "mu must be at least 0 and finite, got -1"),
        ({"mu": math.nan}, "mu must be at least 0 and finite, got nan"),
        ({"temperature": 0.0}, "temperature must be positive and finite, got 0"),
        ({"temperature": math.nan}, "temperature must be positive and finite, got nan"),
    ],
)
def test_refuses_values_out_of_range(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        MOON(**arguments)  # type: ignore[arg-type]
