"""Checks that stop a run with a one-line message, most of them before the first round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    ThroughputMonitor,
)
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from fl_lightning.engine.devices.strategy import ClientParallelStrategy
from fl_lightning.engine.federation.clients import names_of, remedy
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.module.params import is_finite
from fl_lightning.engine.rules.callback import FederatedCallback, Monitor, Part, is_anonymous, overrides
from fl_lightning.engine.rules.work import LocalSettings
from fl_lightning.errors import ConfigurationError, TrainingError, check_at_least, check_choice
from fl_lightning.lightning_private import saves_by_time, synchronizes_batchnorm


def check_settings(given: Mapping[str, Any]) -> None:
    """Refuse arguments of the orchestrator, by name, that are out of range or contradict one another."""
    max_update_norm = given["max_update_norm"]
    at_once = given["clients_at_once"]
    decay = given["local_lr_decay"]
    check_choice("client_states", given["client_states"], "memory", "disk")
    check_choice("on_bad_update", given["on_bad_update"], "skip", "raise")
    check_choice("on_hidden_state", given["on_hidden_state"], "warn", "raise", "off")
    if max_update_norm is not None and not max_update_norm >= 1:
        raise ConfigurationError(
            "max_update_norm must be at least 1, a multiple of the cohort's median norm, or null for no limit, got "
            f"{max_update_norm}"
        )
    if at_once != "auto":
        check_at_least(1, clients_at_once=at_once)
    if given["local_lr_scheduler"] and decay != 1:
        raise ConfigurationError(
            f"give local_lr_scheduler or local_lr_decay, got both, local_lr_decay={decay}: leave one out"
        )
    if given["compile_clients"] and at_once == 1:
        raise ConfigurationError("compile_clients compiles clients that train at once: set clients_at_once as well")


INSTEAD = {  # of the Trainer's flags: what to use in their place
    "gradient_clip_val": "model.gradient_clip_val, which clips local gradients",
    "accumulate_grad_batches": "model.accumulate_grad_batches, which accumulates a client's batches",
    "overfit_batches": "data.participation: 1, which trains one client a round",
    "limit_train_batches": "data.participation for fewer clients, or model.local_steps for less local work",
    "val_check_interval": "trainer.check_val_every_n_epoch, in rounds",
    "precision": "bf16-mixed or 16-mixed: the global model and the updates must stay float32",
    "strategy": "strategy: client_parallel, whose devices train different clients (this one would split each client's "
    "batches, and so train another algorithm)",
    "reload_dataloaders_every_n_epochs": "client_batches(client, order) of a data module of your own, called for "
    "each client in each round",
    "sync_batchnorm": "sync_batchnorm=False, because synchronizing would mix the statistics of different clients",
}


def check_trainer(trainer: Trainer) -> None:
    """Refuse Trainer flags and callbacks that would mean something else: an epoch is a round, a batch is a client."""
    flags: Any = trainer  # mypy does not know those that are set outside Trainer.__init__
    check_callbacks(flags.callbacks)
    splits = isinstance(trainer.strategy, ParallelStrategy) and not isinstance(trainer.strategy, ClientParallelStrategy)
    wrong = {
        "gradient_clip_val": flags.gradient_clip_val,
        "accumulate_grad_batches": flags.accumulate_grad_batches != 1,
        "overfit_batches": flags.overfit_batches > 0,
        "limit_train_batches": _is_not_all(flags.limit_train_batches) and not flags.fast_dev_run,
        "val_check_interval": _is_not_all(flags.val_check_interval),
        f"precision={flags.precision}": flags.precision in ("16-true", "bf16-true"),
        f"strategy={type(flags.strategy).__name__}": splits,
        "reload_dataloaders_every_n_epochs": flags.reload_dataloaders_every_n_epochs,
        "sync_batchnorm": synchronizes_batchnorm(trainer),
    }
    if flags.check_val_every_n_epoch is not None:
        check_at_least(1, **{"trainer.check_val_every_n_epoch": flags.check_val_every_n_epoch})
    for flag, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigurationError(
                f"trainer.{flag} means something else here, where an epoch is a round and a batch is a client: use "
                f"{INSTEAD[flag.split('=')[0]]}"
            )


UNSUITABLE: dict[type[Callback], str] = {  # Lightning's callbacks that need the batches of a plain run
    BatchSizeFinder: "tries out the Trainer's batches, which are clients here: set data.batch_size (after a Tuner, "
    "with a new Trainer)",
    LearningRateFinder: "tries out the server's learning rate here: set the rate of the client's optimizer, and "
    "compare several with fl-lightning sweep (after a Tuner, with a new Trainer)",
    StochasticWeightAveraging: "replaces the server's schedule, and may train an epoch more, which is a round here: "
    "use WeightAveraging or EMAWeightAveraging, which average the global models",
    GradientAccumulationScheduler: "accumulates the Trainer's batches, which are clients here: set "
    "model.accumulate_grad_batches",
    ThroughputMonitor: "counts the Trainer's batches, which are clients here: read timings.csv of the RoundTimer",
    ModelPruning: "replaces parameters in the middle of a fit, whose set must stay the same: use torch.nn.utils.prune "
    "before the fit, and a rule of your own to keep the zeros",
    SpikeDetection: "looks at the losses of the Trainer's batches, which are clients here: set model.on_bad_update, "
    "or use EarlyStopping on train/loss",
}


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuse Lightning's callbacks that would mean something else: an epoch is a round, a batch is a client."""
    for callback in callbacks:
        for kind, reason in UNSUITABLE.items():
            if isinstance(callback, kind):
                raise ConfigurationError(f"{type(callback).__name__} {reason}")
        if isinstance(callback, ModelCheckpoint) and saves_by_time(callback):
            raise ConfigurationError(
                f"{type(callback).__name__} never saves by train_time_interval here, where a batch is a client: set "
                "every_n_epochs, in rounds"
            )


def _is_not_all(limit: float) -> bool:
    return limit != 1.0 or isinstance(limit, int)  # 1.0 stands for all batches, 1 for a single batch


STEPS = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}


def check_evaluation(trainer: Trainer, module: LightningModule) -> None:
    """Refuse to validate, test or predict with a client module that lacks the step, as Lightning does for any module.

    A fit without a ``validation_step`` skips validation; ``predict_step`` calls ``forward`` unless it is overridden.
    """
    method = str(trainer.state.fn.value) if trainer.state.fn else ""
    step = STEPS.get(method)
    forward = method == "predict" and is_overridden("forward", module, LightningModule)
    if step and not forward and not is_overridden(step, module, LightningModule):
        raise ConfigurationError(
            f"{method} runs {type(module).__name__}.{step}, which {type(module).__name__} does not define: define it, "
            f"or leave {method} out"
        )


def check_once(callbacks: Sequence[Callback]) -> None:
    """Refuse a federated callback that is listed twice (Lightning's own message speaks of state keys)."""
    names = [type(callback).__name__ for callback in callbacks if isinstance(callback, FederatedCallback)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"{', '.join(twice)} is listed twice in trainer.callbacks, and would act twice: keep one"
        )


ONCE: dict[Part, str] = {
    "weights": "settle the clients' weights",
    "shrinking": "settle the shrinking factor",
    "reduction": "replace the weighted sum of updates",
    "step": "settle the server's step",
    "local gradient": "settle where clients evaluate their gradients",
    "loss": "replace the training loss",
}


def check_proxy(rules: Sequence[FederatedCallback], data: FederatedData) -> None:
    """Refuse a rule that learns on a proxy set where the server has none."""
    needy = [type(rule).__name__ for rule in rules if rule.needs_proxy]
    if needy and data.proxy_dataloader() is None:
        raise ConfigurationError(
            f"{', '.join(needy)} learns on a proxy set, but {type(data.named).__name__} has none: "
            f"{remedy(data, 'proxy_dataloader()', 'proxy_per_class')}"
        )


def _declared_metrics(rule: FederatedCallback) -> set[str]:
    """Name the metrics that a rule's class declares; a user's own ``metrics`` may be something else."""
    return {metric.name for metric in getattr(type(rule), "metrics", ()) if hasattr(metric, "name")}


def _settled_parts(rule: FederatedCallback) -> frozenset[Part]:
    """Return the parts of a round that a rule settles: the reduction, too, if the rule defines ``reduce``."""
    if rule.reduce is None:
        return rule.settles
    reduction: frozenset[Part] = frozenset({"reduction"})
    return rule.settles | reduction


def check_chain(rules: Sequence[FederatedCallback]) -> None:
    """Refuse two rules that settle the same part of a round, log one metric, or stand in the wrong order."""
    for first_rule, second_rule in combinations(rules, 2):
        first = type(first_rule).__name__
        second = type(second_rule).__name__
        first_settles = _settled_parts(first_rule)
        second_settles = _settled_parts(second_rule)
        reasons = [f"both {what}; keep one" for part, what in ONCE.items() if part in first_settles & second_settles]
        both_log = _declared_metrics(first_rule) & _declared_metrics(second_rule)
        if both_log:
            reasons.append(f"both log {', '.join(sorted(both_log))}, whose mean would mean nothing; keep one")
        if "weights" in first_settles and second_settles & {"updates", "base weights"}:
            reasons.append(f"{first} weighs the updates as they are; put {second} before {first}")
        if "reduction" in first_settles and second_settles & {"weights", "shrinking"}:
            reasons.append(f"{first} uses no weights, so {second} does nothing; keep one")
        if "reduction" in second_settles and first_settles & {"weights", "shrinking"}:
            reasons.append(f"{second} uses no weights, so {first} does nothing; keep one")
        if first_rule.groups and not is_anonymous(second_rule) and not isinstance(second_rule, Monitor):
            reasons.append(f"{first} hands on means of several clients, not single ones; put {second} before {first}")
        if second_rule.groups and "reduction" in first_settles and not is_anonymous(first_rule):
            reasons.append(f"{second} hands on means of several clients, and {first} sums single ones; keep one")
        if reasons:
            raise ConfigurationError(f"{first} and {second} do not go together: {reasons[0]}")


def check_data(data: FederatedData, max_epochs: int | None) -> None:
    """Refuse clients' names that are missing or equal, and a sampler or a trace that is invalid in some round.

    All cohorts of a sampler with a last round are drawn, so that a mistake in round 17 is reported before round 1.
    """
    names_of(data)
    if data.sampler.num_rounds is not None:
        for round in range(1, max(data.sampler.num_rounds, max_epochs or 0) + 1):
            data.cohort(round)
    if data.availability is not None:
        data.turnout(round=1)  # raises what is wrong with a trace


def check_at_sites(callbacks: Sequence[FederatedCallback], devices: int, clients_at_once: int | str) -> None:
    """Refuse what cannot be where clients train on other machines.

    Args:
        callbacks: the run's federated callbacks.
        devices: number of the server's devices.
        clients_at_once: the setting; "auto" counts as 1 there.
    """
    for callback in callbacks:
        if callback.needs_one_machine is not None:
            name = type(callback).__name__
            raise ConfigurationError(
                f"{name} {callback.needs_one_machine}, but the clients train at sites of their own: leave {name} out"
            )
    if clients_at_once not in (1, "auto"):
        raise ConfigurationError(
            f"expected model.clients_at_once to be 1 where clients train at sites of their own, got {clients_at_once}: "
            "leave it out"
        )
    if devices > 1:
        raise ConfigurationError(
            f"expected one device at the server, which trains no clients, got {devices}: set trainer.devices to 1"
        )


def check_client(
    module: LightningModule, settings: LocalSettings, precision: Precision, callbacks: Sequence[FederatedCallback]
) -> None:
    """Refuse a module that cannot train on clients with the run's settings, precision and callbacks.

    A module with manual optimization takes its optimizer steps itself, inside ``training_step``: no setting and no rule
    can act between a loss and a step. A rule that evaluates a gradient again needs the gradient of each single batch,
    without a scale.

    Args:
        module: the client module.
        settings: the local work of every client in a round.
        precision: the Trainer's precision plugin.
        callbacks: the run's federated callbacks.
    """
    name = type(module).__name__
    scaled = getattr(precision, "scaler", None) is not None
    iterates = is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True)
    manual = not module.automatic_optimization
    accumulates = settings.accumulate > 1
    twice = ", ".join(type(callback).__name__ for callback in callbacks if overrides(callback, "closure"))
    between = [
        type(callback).__name__
        for callback in callbacks
        if overrides(callback, "loss") or overrides(callback, "closure")
    ]
    if settings.clip is not None:
        between.append("gradient_clip_val")
    if accumulates:
        between.append("accumulate_grad_batches")
    needy = ", ".join(between)
    synced = [path for path, part in module.named_modules() if isinstance(part, nn.SyncBatchNorm)]
    refusals = [
        (
            synced and distributed.is_available() and distributed.is_initialized(),
            f"{', '.join(synced[:1])} of {name} is SyncBatchNorm, which on several devices would mix the statistics of "
            "different clients: use BatchNorm, whose batches here are never split over devices",
        ),
        (iterates, f"{name}.training_step takes a dataloader_iter: on clients it must take batches"),
        (
            manual and scaled,
            f"{name} steps its optimizers itself, which loses the loss scale of precision=16-mixed: use bf16-mixed, or "
            "automatic optimization",
        ),
        (
            manual and needy,
            f"{needy} acts between a loss and its optimizer step, but {name} uses manual optimization and takes its "
            f"steps itself: use automatic optimization, or leave out {needy}",
        ),
        (
            twice and accumulates,
            f"{twice} evaluates each batch's gradient again: accumulate_grad_batches must be 1, got "
            f"{settings.accumulate}",
        ),
        (twice and scaled, f"{twice} needs gradients without a loss scale: use bf16-mixed instead of 16-mixed"),
    ]
    for applies, message in refusals:
        if applies:
            raise ConfigurationError(message)


def warn_of_slow_precision(precision: Precision, device: torch.device) -> None:
    """Say in one line that ``bf16-mixed`` is slower than float32 on a processor without matrix units for bfloat16."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if device.type == "cpu" and precision.precision == "bf16-mixed" and not capabilities.get("amx_bf16", True):
        rank_zero_warn(
            "trainer.precision=bf16-mixed is usually slower than 32-true on this processor, which has no matrix units "
            "for bfloat16 (AMX): use it to save memory, or to rehearse a run for a GPU"
        )


def check_optimizers(module: LightningModule, optimizers: Sequence[Optimizer]) -> None:
    """Refuse optimizers of parameters that the module does not register, such as those of layers in a plain list."""
    own = {id(parameter) for parameter in module.parameters()}
    trained = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    if hidden := [tuple(parameter.shape) for parameter in trained if id(parameter) not in own]:
        raise ConfigurationError(
            f"{type(module).__name__}.configure_optimizers returns {len(hidden)} parameters, the first of shape "
            f"{hidden[0]}, that {type(module).__name__}.parameters() lacks, so they would not reach the server: keep "
            "layers in an nn.ModuleList, and tensors as nn.Parameter attributes"
        )


def check_trainable(module: LightningModule, expected: Sequence[Tensor], now: Sequence[Tensor], round: int) -> None:
    """Refuse a set of trainable parameters that has changed since the fit began.

    Args:
        module: the client module.
        expected: the trainable parameters when the fit began.
        now: the trainable parameters now.
        round: the round that begins.
    """
    expected_ids = [id(parameter) for parameter in expected]
    ids = [id(parameter) for parameter in now]
    if ids == expected_ids:
        return
    odd = set(expected_ids) ^ set(ids)
    names = [name for name, parameter in module.named_parameters() if id(parameter) in odd]
    raise ConfigurationError(
        f"round {round}: the trainable parameters of {type(module).__name__} have changed since the fit began "
        f"({', '.join(names[:3]) or 'a parameter is new or gone'}): rules need one set for a whole fit; freeze and "
        "unfreeze before it, or start a second fit with this one's checkpoint as model.init_from"
    )


def check_finite(vector: Tensor, round: int, makers: Sequence[FederatedCallback]) -> None:
    """Stop the run if rules made a vector with infinite or nan entries from finite updates.

    Args:
        vector: (P,) the update or the new global model.
        round: the round's number, for the message.
        makers: the rules that made the vector, for the message.

    Raises:
        TrainingError: an entry of the vector is infinite or nan.
    """
    if not is_finite(vector):
        names = ", ".join(type(rule).__name__ for rule in makers)
        raise TrainingError(f"round {round}: every client's update is finite, but the result of {names} is not")
