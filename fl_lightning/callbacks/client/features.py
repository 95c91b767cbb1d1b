"""FeatureRule: base of the rules whose loss looks at features, the output of a layer for a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, LocalRun, Server, evaluating
from fl_lightning.models.layers import find_classifier, find_layer


def forward_inputs(module: LightningModule, batch: Any) -> Tensor:
    """Return the part of a batch that the module's ``forward`` takes: the first item, or the batch if it is a tensor.

    Raises:
        ConfigurationError: the module has no ``forward``, or this part of the batch is not a tensor.
    """
    inputs = batch[0] if isinstance(batch, list | tuple) else batch
    if not isinstance(inputs, Tensor) or not is_overridden("forward", module, LightningModule):
        got = type(inputs).__name__ if not isinstance(inputs, Tensor) else "a module without forward"
        raise ConfigurationError(
            f"a rule computes features by {type(module).__name__}.forward(inputs), where inputs is the batch or its "
            f"first item, a tensor; got {got}: define forward, or let each batch be or begin with a tensor"
        )
    return inputs


def weights_at(orchestrator: Server) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return a function from parameters (P,) to the client module's tensors by name, with its present buffers."""
    trained = [name for name, parameter in orchestrator.client.named_parameters() if parameter.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in orchestrator.client.named_buffers()}
    return lambda params: buffers | dict(zip(trained, orchestrator.split(params), strict=True))


class FeatureRule(FederatedCallback, ABC):
    """Base of the rules whose loss looks at features (N, d) of a batch.

    Features are the output of a named layer, or by default the input of the classifier: in timm networks the pooled
    features (``forward_head(…, pre_logits=True)``), elsewhere the input of the last nn.Linear. While a client trains, a
    hook keeps the features of the last forward pass with gradients. Forward passes under ``no_grad``, such as those of
    a teacher model, are ignored. Rules get the features in the dtype of the parameters.

    Args:
        layer: name of a submodule of the client module, such as "network.projection"; None for the classifier's input.
    """

    streams = True

    _hook: RemovableHandle | None = None
    _kept: Tensor | None = None
    _looking = False  # whether the present forward pass is one that this rule makes

    def __init__(self, layer: str | None = None) -> None:
        self.layer = layer

    @abstractmethod
    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor: ...

    def features(self, run: LocalRun) -> Tensor:
        """Return the (N, d) features of the ``training_step`` that has just run, with their graph, and forget them.

        Raises:
            ConfigurationError: the layer was not used in that step.
        """
        kept, self._kept = self._kept, None
        if kept is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs features, but {type(run.module).__name__} did not use {self._place} in "
                "its forward pass: name another layer by the argument layer"
            )
        return kept.reshape(len(kept), -1).to(run.params.dtype)

    def features_at(self, run: LocalRun, weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Compute the (N, d) features of inputs under other weights, in evaluation mode and without gradients.

        The module's own tensors stay untouched, since the graph of the ``training_step`` may still need them.

        Args:
            run: the run of the client that trains now.
            weights: the other weights by name, as the function of :func:`weights_at` returns them.
            inputs: the inputs in the batch, as :func:`forward_inputs` returns them.

        Raises:
            ConfigurationError: the module's ``forward`` does not use the layer.
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
                f"{type(self).__name__} takes the input of the last nn.Linear as features, but "
                f"{type(run.module).__name__} has none: name a layer by the argument layer"
            )

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.release()

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        self.release()  # the last client may have failed before on_client_end
        return cohort

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.release()  # the fit has failed

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.release()  # the fit may have ended within a round

    def release(self) -> None:
        """Remove the hook from the module, and forget the features that it kept."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._kept = None

    @property
    def _place(self) -> str:
        return "the last nn.Linear" if self.layer is None else f"layer {self.layer!r}"

    def _keep(self, value: Any) -> None:
        if not isinstance(value, Tensor) or not value.ndim:
            raise ConfigurationError(
                f"{type(self).__name__} needs a tensor (N, …) from {self._place}, got "
                f"{'a scalar' if isinstance(value, Tensor) else type(value).__name__}: name another layer by the "
                "argument layer"
            )
        if self._looking or torch.is_grad_enabled():
            self._kept = value.clone()  # an in-place activation may follow
