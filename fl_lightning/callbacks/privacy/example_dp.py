"""ExampleDP: clients train by gradients that are clipped and have noise: DP-SGD."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedCallback, LocalRun, Server, check_names, overrides
from fl_lightning.callbacks.client.fedsam import following
from fl_lightning.callbacks.personal.fedbn import KINDS
from fl_lightning.callbacks.privacy.by_example import check_by_example
from fl_lightning.callbacks.privacy.noisy_clients import NoisyClients
from fl_lightning.callbacks.privacy.private_rule import CLIENT_HOOKS, SERVER_HOOKS
from fl_lightning.engine.rules.declared import declares
from fl_lightning.engine.rules.server import takes_index
from fl_lightning.later import later
from fl_lightning.seeding import global_states, set_global_states


class _Step(nn.Module):
    """A module whose forward pass is the loss of the client module's training step."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Tensor:
        step = self.module.training_step
        outputs: Any = step(batch, 0) if takes_index(step) else step(batch)
        return outputs["loss"] if isinstance(outputs, dict) else outputs  # type: ignore[no-any-return]


def _without_loss(optimizer: Any, args: Any, kwargs: Any) -> Any:
    """Let the closure of a step return nan in place of the loss, as a hook before the step."""
    itself, *closures = args

    def unread(closure: Callable[[], Tensor | None]) -> Tensor | None:
        loss = closure()
        return None if loss is None else torch.full_like(loss, torch.nan)

    return (itself, *(partial(unread, closure) for closure in closures)), kwargs


class ExampleDP(NoisyClients):
    """Clips the gradient of each example, and adds noise to their sum, in every local step (Abadi et al., 2016).

    A step follows (Σ_i g_i min(1, S / ‖g_i‖) + z S N(0, 1)) / B for the B examples of a batch. ``privacy/epsilon`` is
    what the models tell of one example of a client, of the client with most sums so far. It counts each local epoch as
    one sum in which every example is, and in which another example moves the sum by at most 2 S: so it holds for
    shuffled batches, where an epoch has each example once, and leaves out what sampled batches would save. An epoch
    counts as often as its batch with most evaluations, and a client that is left out of a round counts, too. Training
    losses are not covered: the optimizer gets nan in their place, and a rule that reads them is refused, but not a
    module of your own. Gradients take memory for B × P numbers, and the clients train one by one; so do the examples of
    a batch, which a line says, where vmap does not take the module: one whose steps depend on values.

    An example's gradient must depend on that example alone, and an example come once in the federation. So it is with
    the package's own data modules and LightningModules, exactly these, and layers of PyTorch, timm, transformers and
    peft other than BatchNorm. A run with other classes or functions that see a batch is refused, unless ``by_example``
    names them.

    Args:
        clip: S > 0, largest norm of an example's gradient.
        noise_multiplier: z > 0; each coordinate of the noise has the standard deviation z S.
        delta: δ in (0, 1).
        by_example: names of your classes and functions, such as ``[MyNet, my_collate, MyModule.on_train_start]``, that
            treat each example alone: what they make of an example, and whether it trains, depends on no other example.

    Raises:
        ConfigurationError: an argument is out of range; another rule changes the loss, evaluates gradients, learns from
            examples, or reads more than updates; the module has BatchNorm, which mixes examples, a line search, or
            hooks on gradients; a class or function is neither the package's own nor named; clients send more, or have
            an example several times.
    """

    settles = frozenset({"local gradient", "loss"})
    telling_hooks = (*SERVER_HOOKS, *CLIENT_HOOKS)

    @later(by_example=())
    def __init__(
        self,
        clip: float = 1.0,
        noise_multiplier: float = 1.0,
        delta: float = 1e-5,
        by_example: Sequence[str] = (),
    ) -> None:
        super().__init__(clip, noise_multiplier, delta)
        if by_example:
            check_names(by_example=by_example)
        self.by_example = by_example

    @override
    def check(self, orchestrator: Any, rules: Sequence[FederatedCallback]) -> None:
        for rule in rules:
            if rule is not self and (overrides(rule, "loss") or overrides(rule, "closure")):
                raise ConfigurationError(
                    f"ExampleDP takes the gradients of {type(orchestrator.client).__name__}'s own loss, example by "
                    f"example, so {type(rule).__name__} would do nothing: keep one"
                )
        for name, part in orchestrator.client.named_modules():
            if isinstance(part, KINDS):
                raise ConfigurationError(
                    f"ExampleDP: {name} is BatchNorm, which mixes the examples of a batch: set the network "
                    "WithGroupNorm"
                )
        if not declares(orchestrator.data, "in_rows", ["client_batches"]):
            raise ConfigurationError(
                f"ExampleDP counts an example once an epoch, but {type(orchestrator.data).__name__} has own "
                "client_batches, so ε would be false: leave the batches to the base class"
            )
        super().check(orchestrator, rules)
        self._one_by_one = False
        check_by_example(orchestrator, self.by_example)

    @override
    def sums(self, orchestrator: Server) -> Mapping[int, int]:
        return self.made

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        step, names, split = _Step(run.module), orchestrator.flat.names, orchestrator.split

        def loss(params: Tensor, example: list[Tensor]) -> Tensor:
            named = {f"module.{name}": part for name, part in zip(names, split(params), strict=True)}
            parts = iter(example)
            alone = apply_to_collection(self._batch, Tensor, lambda _: next(parts)[None])  # a batch of one
            return functional_call(step, named, (alone,))  # type: ignore[no-any-return]  # of _Step

        self._of_one = grad(loss)
        self._draw = orchestrator.generator("example dp", run.round, run.client)
        self._most: dict[int, int] = {}  # by local epoch, the sums of the batch with most
        optimizer = run.optimizers[0]
        if any(group.get("line_search_fn") for group in optimizer.param_groups):
            raise ConfigurationError(
                f"ExampleDP: the line search of {type(optimizer).__name__} reads the loss, which has no noise: set "
                "line_search_fn to None"
            )
        for name, parameter in run.module.named_parameters():
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise ConfigurationError(
                    f"ExampleDP: {name} has hooks on its gradient, such as of an optimizer that steps in the backward "
                    "pass, which see the gradient without noise: leave them out"
                )
        optimizer.register_step_pre_hook(_without_loss)

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        self._batch = batch
        return loss

    @override
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        count = 0

        def noisy_gradient() -> Tensor:
            nonlocal count
            count += 1
            self._most[run.epoch] = max(count, self._most.get(run.epoch, 0))
            self.made[run.client] = sum(self._most.values())
            tensors: list[Tensor] = []
            apply_to_collection(self._batch, Tensor, tensors.append)
            with run.at(run.params), run.module.trainer.precision_plugin.train_step_context():
                gradients = self._gradients(run, tensors)
            return self.add_noise(self.factors(gradients) @ gradients, self._draw) / len(gradients)

        return following(run, closure, noisy_gradient)

    def _gradients(self, run: LocalRun, tensors: list[Tensor]) -> Tensor:
        """Compute the gradients (B, P) of a batch's examples: at once, or one by one where the module needs to.

        A module needs to whose steps depend on values, as attention does that asks whether a mask hides anything.
        """
        params = run.params.clone()
        if not self._one_by_one:
            drawn = global_states(params.device)
            try:
                at_once: Tensor = vmap(self._of_one, in_dims=(None, 0), randomness="different")(params, tensors)
                return at_once
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # of vmap, or of the module: then it comes again
                set_global_states(drawn, params.device)
        gradients = torch.stack([self._of_one(params, list(example)) for example in zip(*tensors, strict=True)])
        if not self._one_by_one:
            self._one_by_one = True
            rank_zero_warn(
                f"ExampleDP: {type(run.module).__name__} cannot take the examples of a batch at once, so it takes one "
                "by one, which is slower"
            )
        return gradients
