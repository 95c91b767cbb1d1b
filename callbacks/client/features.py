"""Features: what a layer makes of a batch, for rules whose loss looks at them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, LocalRun, Server
from fl_lightning.engine.server import evaluating
from fl_lightning.models.layers import find_classifier, find_layer


def forward_inputs(module: LightningModule, batch: Any) -> Tensor:
    """What the module's ``forward`` takes of a batch: its first item, or all of it, if it is a tensor.

    Raises:
        ConfigurationError: the module has no ``forward``, or that item is no tensor.
    """
    inputs = batch[0] if isinstance(batch, list | tuple) else batch
    if not isinstance(inputs, Tensor) or not is_overridden("forward", module, LightningModule):
        got = type(inputs).__name__ if not isinstance(inputs, Tensor) else "a module without forward"
        raise ConfigurationError(
            f"a rule shows a batch to other models by {type(module).__name__}.forward(inputs), of batches that are a "
            f"tensor or begin with one, got {got}: define it, or let batches be such"
        )
    return inputs


def weights_at(orchestrator: Server, params: Tensor) -> dict[str, Tensor]:
    """The client module's tensors by name: parameters (P,) as given, buffers as they are now."""
    trained = [name for name, parameter in orchestrator.client.named_parameters() if parameter.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in orchestrator.client.named_buffers()}
    return buffers | dict(zip(trained, orchestrator.split(params), strict=True))


class FeatureRule(FederatedCallback, ABC):
    """Base of rules whose loss looks at features (N, d) of the batch.

    These are the output of a named layer, or else what enters the classifier: in networks of timm the pooled features
    (``forward_head(…, pre_logits=True)``), elsewhere the input of the last nn.Linear. While a client trains, a hook
    keeps them as the last forward pass with gradients made them, in the dtype of the parameters. Those under
    ``no_grad``, as a teacher's, are passed over.

    Args:
        layer: name of a submodule of the client module, such as "network.projection"; None for the classifier's input.
    """

    _hook: RemovableHandle | None = None
    _kept: Tensor | None = None
    _looking = False  # whether the pass under way is this rule's own

    def __init__(self, layer: str | None = None) -> None:
        self.layer = layer

    @abstractmethod
    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor: ...

    def features(self, run: LocalRun) -> Tensor:
        """(N, d) features of the ``training_step`` that has just run, with their graph; each can be had once.

        Raises:
            ConfigurationError: the layer had no part in it.
        """
        kept, self._kept = self._kept, None
        if kept is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs features, but {self._place} had no part in the forward pass of "
                f"{type(run.module).__name__}: name another one by layer"
            )
        return kept.reshape(len(kept), -1).to(run.params.dtype)

    def features_at(self, run: LocalRun, weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """(N, d) features of the same inputs under other weights, in evaluation mode and without gradient.

        The module's own tensors are not touched, since the graph of the ``training_step`` may still need them.

        Args:
            run: the client under way.
            weights: see :func:`weights_at`.
            inputs: see :func:`forward_inputs`.

        Raises:
            ConfigurationError: the layer has no part in the module's ``forward``.
        """
        self._looking = True
        try:
            with evaluating(run.module), torch.no_grad(), run.module.trainer.precision_plugin.train_step_context():
                functional_call(run.module, weights, (inputs,))
        finally:
            self._looking = False
        return self.features(run)

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        self.release()
        if self.layer is not None:
            self._hook = find_layer(run.module, self.layer).register_forward_hook(lambda _, args, out: self._keep(out))
        elif (classifier := find_classifier(run.module)) is not None:
            self._hook = classifier.register_forward_pre_hook(
                lambda _, args, named: self._keep(next(iter((*args, *named.values())))), with_kwargs=True
            )
        else:
            raise ConfigurationError(
                f"{type(self).__name__} looks at what enters the last nn.Linear, but {type(run.module).__name__} has "
                "none: name a layer"
            )

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.release()

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        self.release()
        return cohort

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.release()  # the fit has failed

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.release()  # the fit may have ended within a round

    def release(self) -> None:
        """Leave no hook on the module, and no features of its last pass."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._kept = None

    @property
    def _place(self) -> str:
        return "the last nn.Linear" if self.layer is None else f"layer {self.layer!r}"

    def _keep(self, value: Any) -> None:
        if not isinstance(value, Tensor) or not value.ndim:
            raise ConfigurationError(
                f"{type(self).__name__} needs a tensor (N, …) of {self._place}, got "
                f"{'a scalar' if isinstance(value, Tensor) else type(value).__name__}: name another one by layer"
            )
        if self._looking or torch.is_grad_enabled():
            self._kept = value.clone()  # an in-place activation may follow
