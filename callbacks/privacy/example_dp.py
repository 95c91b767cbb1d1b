"""ExampleDP: clients train by gradients that are clipped and have noise: DP-SGD."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, LocalRun, Server
from fl_lightning.callbacks.client.fedsam import following
from fl_lightning.callbacks.personal.fedbn import KINDS
from fl_lightning.callbacks.privacy.noisy_clients import NoisyClients
from fl_lightning.engine.rules.callback import overrides, rules_of
from fl_lightning.engine.rules.server import takes_index


class _Step(nn.Module):
    """A module whose forward pass is the loss of the client module's training step."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Tensor:
        step = self.module.training_step
        outputs: Any = step(batch, 0) if takes_index(step) else step(batch)
        return outputs["loss"] if isinstance(outputs, dict) else outputs  # type: ignore[no-any-return]


class ExampleDP(NoisyClients):
    """Clips the gradient of each example, and adds noise to their sum, in every local step (Abadi et al., 2016).

    A step follows (Σ_i g_i min(1, S / ‖g_i‖) + z S N(0, 1)) / B for the B examples of a batch. ``privacy/epsilon`` is
    what the models tell of one example of a client, of the client with most local epochs so far. It counts each pass
    over the data as one sum in which every example is, and in which another example moves the sum by at most 2 S: so it
    holds for shuffled batches, and leaves out what sampled batches would save. Training losses are not covered, so add
    no server rule that reads them (FedFV, DominantGradientCorrection). Gradients take memory for B × P numbers, and the
    clients train one by one.

    Args:
        clip: S > 0, largest norm of an example's gradient.
        noise_multiplier: z > 0; each coordinate of the noise has the standard deviation z S.
        delta: δ in (0, 1).

    Raises:
        ConfigurationError: an argument is out of range; another rule changes the loss or evaluates gradients; the
            module has BatchNorm, which mixes examples; clients send more than their updates.
    """

    settles = frozenset({"local gradient", "loss"})

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        server: Any = pl_module
        hooks = ("loss", "closure")
        if other := next((r for r in rules_of(trainer) if r is not self and any(overrides(r, h) for h in hooks)), None):
            raise ConfigurationError(
                f"ExampleDP takes the gradients of {type(server.client).__name__}'s own loss, example by example, so "
                f"{type(other).__name__} would do nothing: keep one"
            )
        if mixing := next((name for name, part in server.client.named_modules() if isinstance(part, KINDS)), None):
            raise ConfigurationError(
                f"ExampleDP: {mixing} is BatchNorm, which mixes the examples of a batch: set the network WithGroupNorm"
            )

    @override
    def sums(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        batches = [orchestrator.data.num_batches(int(size)) for size in cohort.num_samples]
        return torch.ceil(cohort.num_steps / torch.tensor(batches)).long()

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        step, names, split = _Step(run.module), orchestrator.flat.names, orchestrator.split

        def loss(params: Tensor, example: list[Tensor]) -> Tensor:
            named = {f"module.{name}": each for name, each in zip(names, split(params), strict=True)}
            parts = iter(example)
            alone = apply_to_collection(self._batch, Tensor, lambda _: next(parts)[None])  # a batch of one
            return functional_call(step, named, (alone,))  # type: ignore[no-any-return]  # of _Step

        self._gradients = vmap(grad(loss), in_dims=(None, 0), randomness="different")
        self._draw = orchestrator.generator("example dp", run.round, run.client)

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        self._batch = batch
        return loss

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        def noisy() -> Tensor:
            tensors: list[Tensor] = []
            apply_to_collection(self._batch, Tensor, tensors.append)
            with run.at(run.params), run.module.trainer.precision_plugin.train_step_context():
                each = self._gradients(run.params.clone(), tensors)
            return self.add_noise(self.factors(each) @ each, self._draw) / len(each)

        return following(run, closure, noisy)
