"""FeatureRule: which features a rule sees, under which weights, and that no hook stays behind."""

from typing import Any

import pytest
import torch
from lib.toy import BATCHES, Capture, Net, Quadratic, Same, ToyData, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import ClientFailure, ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun
from fl_lightning.callbacks.client.features import FeatureRule, find_classifier, forward_inputs, weights_at


class Look(FeatureRule):
    """Keeps the features that it sees, and those at the anchor."""

    def __init__(self, layer: str | None = None) -> None:
        super().__init__(layer)
        self.seen: list[Tensor] = []
        self.at_anchor: list[Tensor] = []

    def on_client_start(self, orchestrator: Any, run: LocalRun) -> None:
        super().on_client_start(orchestrator, run)
        self.anchor = weights_at(orchestrator)(run.anchor)

    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        self.seen.append(self.features(run))
        if type(run.module).forward is not LightningModule.forward:
            self.at_anchor.append(self.features_at(run, self.anchor, batch[0]))
        return loss


class WithForward(Net):
    """The plain network, in any dtype."""

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.to(self.net[0].weight.dtype))  # type: ignore[no-any-return]


class InPlace(WithForward):
    """Its activation overwrites what it is given."""

    def between(self) -> list[nn.Module]:
        return [nn.ReLU(inplace=True)]


class Noisy(WithForward):
    """Batch normalization and dropout."""

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.Dropout(0.5)]


def look(module: LightningModule, rule: Look, *others: Any, steps: int = 1, **flags: Any) -> Look:
    orchestrator = FederatedOrchestrator(module, local_steps=steps, on_bad_update="raise", on_hidden_state="off")
    trainer(rule, *others, **flags).fit(orchestrator, datamodule=Same())
    return rule


def hooks(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def test_by_default_what_enters_the_last_linear_layer() -> None:
    (seen,) = look(WithForward(), Look()).seen
    assert torch.equal(seen, WithForward().net[:2](BATCHES[0][0]))
    assert seen.requires_grad


def test_a_layer_by_name_and_what_follows_in_place_does_not_change_it() -> None:
    module = InPlace()
    expected = InPlace().net[0](BATCHES[0][0])
    assert (expected < 0).any()
    assert torch.equal(look(module, Look("net.0")).seen[0], expected)


def test_features_are_one_row_an_example() -> None:
    class Images(WithForward):
        def between(self) -> list[nn.Module]:
            return [nn.Unflatten(1, (2, 2, 2)), nn.Flatten()]

    (seen,) = look(Images(), Look("net.1")).seen
    assert torch.equal(seen, Images().net[0](BATCHES[0][0]))


def test_the_classifier_is_the_one_that_timm_names() -> None:
    class Distilling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.auxiliary = nn.Conv2d(4, 3, 1), nn.Linear(4, 3)

        def get_classifier(self) -> nn.Module:
            return self.head

        forward_features = forward_head = nn.Module.forward

    network = Distilling()
    assert find_classifier(nn.Sequential(network)) is network.head
    assert find_classifier(nn.Sequential(network, network.auxiliary, Distilling())) is not network.head  # which of two?
    assert find_classifier(nn.Sequential(nn.Tanh())) is None


def test_a_pass_without_gradient_is_passed_over() -> None:
    """As a teacher's in the training_step, after the student's."""

    class Taught(WithForward):
        def loss(self, batch: Any) -> Tensor:
            loss = super().loss(batch)
            with torch.no_grad():
                self(batch[0] + 1)
            return loss

    assert torch.equal(look(Taught(), Look()).seen[0], look(WithForward(), Look()).seen[0])


def test_other_weights_are_looked_at_in_evaluation_mode_and_leave_no_trace() -> None:
    """At the anchor, features are those of the module as it began, BatchNorm's (0, 1) and no dropout; training goes on
    as if nobody had looked.
    """
    rule, alone = Look(), Capture()
    seen = Capture()
    look(Noisy(), rule, seen, steps=3)
    start = Noisy().eval()
    assert len(rule.at_anchor) == 3
    for (x, _), features in zip(BATCHES, rule.at_anchor, strict=False):
        torch.testing.assert_close(features, start.net[:-1](x))
        assert not features.requires_grad
    assert not torch.equal(rule.seen[0], rule.at_anchor[0])
    trainer(alone).fit(FederatedOrchestrator(Noisy(), local_steps=3, on_hidden_state="off"), datamodule=Same())
    assert torch.equal(seen.params[0], alone.params[0])
    assert all(torch.equal(seen.buffers[0][name], value) for name, value in alone.buffers[0].items())


@pytest.mark.parametrize("layer", ["net.0", None])
def test_in_half_precision_features_have_the_parameters_dtype(layer: str | None) -> None:
    rule = look(WithForward(), Look(layer), precision="bf16-mixed")
    assert rule.seen[0].dtype == rule.at_anchor[0].dtype == torch.float32
    assert torch.equal(rule.seen[0], rule.at_anchor[0])  # so both went through bfloat16
    assert not torch.equal(rule.seen[0], look(WithForward(), Look(layer)).seen[0])


class Probe(FederatedCallback):
    """Counts hooks in training and at the round's end; spoils what it is told to."""

    def __init__(self, failure: BaseException | None = None, client: int = 1) -> None:
        self.failure, self.client = failure, client
        self.training: list[int] = []
        self.between: list[int] = []

    def on_before_client_step(self, run: LocalRun) -> None:
        self.training.append(hooks(run.module))
        if self.failure and run.client == self.client:
            raise self.failure

    def on_client_end(self, orchestrator: Any, run: LocalRun) -> None:
        self.between.append(hooks(run.module))

    def refine(self, orchestrator: FederatedOrchestrator, cohort: Any) -> None:
        self.between.append(hooks(orchestrator.client))


class Two(Same):
    num_clients = 2


def fit_two(module: Net, rule: FeatureRule, probe: Probe, bad: Any = "skip") -> None:
    orchestrator = FederatedOrchestrator(module, on_bad_update=bad, on_hidden_state="off")
    trainer(rule, probe, rounds=2).fit(orchestrator, datamodule=Two())


@pytest.mark.parametrize("client", [0, 1])
def test_no_hook_of_a_client_that_fails(client: int) -> None:
    """The next to hear of it is client 1, which has one hook, not two; of client 1 it is the server."""
    module, rule, probe = WithForward(), Look(), Probe(ClientFailure("broken"), client)
    with pytest.warns(UserWarning, match=f"client {client} is left out: ClientFailure: broken"):
        fit_two(module, rule, probe)
    assert probe.training == [1] * 12
    assert probe.between == [0] * 4
    assert rule._kept is None


def test_no_hook_of_a_fit_that_fails() -> None:
    module, rule, probe = WithForward(), Look(), Probe(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        fit_two(module, rule, probe, "raise")
    assert probe.training == [1] * 6
    assert hooks(module) == 0


class Stop(Probe):
    """Client 0 fails, and the time is up before client 1."""

    def on_before_client_step(self, run: LocalRun) -> None:
        self.training.append(hooks(run.module))
        raise ClientFailure("broken")

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = True


def test_no_hook_where_the_fit_ends_within_a_round() -> None:
    module, probe = WithForward(), Stop()
    with pytest.warns(UserWarning, match="client 0 is left out"):
        fit_two(module, Look(), probe)
    assert (probe.training, probe.between) == ([1], [])
    assert hooks(module) == 0


def test_the_module_may_move_between_fits() -> None:
    module, rule = WithForward(), Look()
    look(module, rule)
    look(module.double(), rule)
    assert [seen.dtype for seen in rule.seen + rule.at_anchor] == [torch.float32, torch.float64] * 2


def test_refuses_a_layer_that_is_not_there() -> None:
    message = r"layer must name a submodule of Net, got 'net\.00'; similar names: net\.0"
    with pytest.raises(ConfigurationError, match=message):
        look(Net(), Look("net.00"))


def test_refuses_a_module_without_a_linear_layer() -> None:
    message = "Look takes the input of the last nn.Linear as features, but Quadratic has none: name a layer"
    with pytest.raises(ConfigurationError, match=message):
        trainer(Look()).fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())


def test_refuses_a_layer_without_part_in_the_training_step() -> None:
    module = Net()
    module.spare = nn.Linear(2, 2)
    message = r"Look needs features, but Net did not use the last nn\.Linear in its forward pass: name another layer"
    with pytest.raises(ConfigurationError, match=message):
        look(module, Look())


@pytest.mark.parametrize(("output", "got"), [((torch.ones(2), None), "tuple"), (torch.tensor(1.0), "a scalar")])
def test_refuses_an_output_that_is_no_row_for_each_example(output: Any, got: str) -> None:
    """As of a recurrent layer, or of a loss."""
    message = rf"Look needs a tensor \(N, …\) from layer 'net\.1', got {got}: name another layer by the argument layer"
    with pytest.raises(ConfigurationError, match=message):
        Look("net.1")._keep(output)


def test_the_classifier_may_take_its_input_by_name() -> None:
    class Named(Net):
        def loss(self, batch: Any) -> Tensor:
            return nn.functional.cross_entropy(self.net[2](input=self.net[:2](batch[0])), batch[1])

    assert torch.equal(look(Named(), Look()).seen[0], look(Net(), Look()).seen[0])


def test_other_weights_need_a_forward_of_the_inputs() -> None:
    """The first item of a batch, or the batch itself: a tensor."""
    x = torch.ones(1, 4)
    assert forward_inputs(WithForward(), [x, 0]) is forward_inputs(WithForward(), x) is x
    for module, batch, got in ((Net(), x, "Net.*got a module without forward"), (WithForward(), {"x": x}, "got dict")):
        with pytest.raises(ConfigurationError, match=f"a rule computes features by .*{got}"):
            forward_inputs(module, batch)
