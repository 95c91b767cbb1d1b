"""Several ranks start one run alike: the first rank's model goes to all, and ranks that disagree are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning
import torch
import torch.distributed
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.arguments import Facts, as_text, digest, parts, settings, shapes, tensors
from fl_lightning.engine.devices.ranks import START
from fl_lightning.engine.devices.strategy import busy, waits
from fl_lightning.engine.federation.clients import data_fingerprint
from fl_lightning.engine.module.state import overwrite
from fl_lightning.engine.rules.callback import federated
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.rules.server_optimizer import settings_of
from fl_lightning.errors import ConfigurationError
from fl_lightning.seeding import global_states, set_global_states

TRAINER = ("max_epochs", "min_epochs", "max_steps", "precision", "check_val_every_n_epoch", "limit_val_batches")
LONG = 2000  # characters of a fact, above which it travels as its beginning and a digest
SHOWN_LETTERS = 60  # characters of a fact in a message


def start_alike(orchestrator: Server) -> None:
    """Compare what the ranks of a run start from, then give all of them the first rank's tensors and random states.

    DDP does so, too, when it wraps a module.

    Raises:
        ConfigurationError: ranks disagree.
    """
    trainer, device = orchestrator.trainer, orchestrator.device
    if trainer.world_size == 1:
        return
    check_alike(trainer, _facts(orchestrator))
    with torch.no_grad():
        for tensor in tensors(orchestrator).values():
            sent = tensor.detach().clone().cpu()  # cloned, since a view would travel with all that it is a view of
            overwrite(tensor, trainer.strategy.broadcast(sent).to(tensor.device))
    states = trainer.strategy.broadcast(global_states(device))
    if not trainer.is_global_zero:
        set_global_states(states, device)


def check_start(orchestrator: Server, optimizers: Sequence[Optimizer]) -> None:
    """Compare what is known only when a fit begins: optimizers, schedules, and the model after ``on_fit_start``.

    Args:
        orchestrator: the orchestrator.
        optimizers: a client's optimizers.

    Raises:
        ConfigurationError: ranks disagree.
    """
    trainer = orchestrator.trainer
    if trainer.world_size > 1:
        acting: dict[str, Sequence[Any]] = {"client optimizer": optimizers, "server optimizer": trainer.optimizers}
        acting["schedule"] = [config.scheduler for config in trainer.lr_scheduler_configs]
        facts = {
            f"{kind} {index}": as_text((type(each), settings_of(each)) if isinstance(each, Optimizer) else each)
            for kind, made in acting.items()
            for index, each in enumerate(made, 1)
        }
        check_alike(trainer, facts | {"the model after on_fit_start": _digest(tensors(orchestrator))})


def check_alike(trainer: Trainer, facts: Facts) -> None:
    """Refuse facts that differ between the ranks of a run; every rank raises the same error.

    Args:
        trainer: the Trainer of several ranks.
        facts: this rank's facts; the names may differ, too.

    Raises:
        ConfigurationError: a fact differs; the message names each difference from rank 0, up to three.
    """
    everywhere: list[Facts] = [{}] * trainer.world_size
    waits(trainer)
    torch.distributed.all_gather_object(everywhere, facts)
    busy(trainer, START)
    names = dict.fromkeys(name for each in everywhere for name in each)
    differences = [line for name in names if (line := _difference(name, [each.get(name) for each in everywhere]))]
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise ConfigurationError(
            f"ranks differ: {'; '.join(differences[:3])}{more}: start all ranks with the same settings, data and seeds"
        )


def _difference(name: str, facts: list[str | None]) -> str:
    """Say how a fact, one for each rank, differs from rank 0's; return an empty text if it does not."""
    first = facts[0]
    other = next((each for each in facts if each != first), first)
    if other == first:
        return ""
    ranks = [str(rank) for rank, each in enumerate(facts) if each == other]
    pairs = enumerate(zip(first or "", other or "", strict=False))
    start = max(0, next((place for place, (one, two) in pairs if one != two), 0) - SHOWN_LETTERS // 2)
    one, two = ("missing" if each is None else _excerpt(each, start) for each in (first, other))
    return f"{name} is {one} on rank 0 and {two} on rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"


def _excerpt(text: str, start: int) -> str:
    end = start + SHOWN_LETTERS
    return f"{'…' if start else ''}{' '.join(text[start:end].split())}{'…' if text[end:] else ''}"


def _facts(orchestrator: Server) -> Facts:
    """Collect what a rank starts from, apart from the values of tensors: settings, data, rules, the model's parts."""
    trainer, data, client = orchestrator.trainer, orchestrator.data, orchestrator.client
    facts = {f"trainer.{name}": as_text(getattr(trainer, name)) for name in TRAINER}
    facts |= {f"version of {each.__name__}": str(each.__version__) for each in (torch, lightning)}
    facts |= {f"model.{name}": text for name, text in settings(orchestrator).items()}
    facts |= {"local work": repr(getattr(orchestrator, "settings", None))}
    facts |= {"data": type(data).__name__} | {f"data.{name}": text for name, text in settings(data).items()}
    facts["clients' sizes"] = f"{int(data.sizes.sum())} examples of {data.num_clients} clients: {data.sizes.tolist()}"
    facts["clients' examples"] = data_fingerprint(data)
    facts["callbacks"] = as_text([type(each) for each in federated(trainer)])
    for each in federated(trainer):
        name = f"callback {type(each).__name__}"
        facts[name] = facts.get(name, "") + as_text(each)
    facts["dtype"] = str(torch.get_default_dtype())
    name = type(client).__name__
    facts |= {f"{name}.hparams.{key}": as_text(value) for key, value in client.hparams.items()}
    facts |= parts(client, name) | shapes(orchestrator)
    if trainer.ckpt_path:
        facts["the model in ckpt_path"] = _digest(orchestrator.state_dict())
    return {
        name: text if len(text) <= LONG else f"{text[:LONG]}{digest(text.encode())}" for name, text in facts.items()
    }


def _digest(tensors: Mapping[str, Tensor]) -> str:
    return digest(as_text(tensors).encode())
