"""Several ranks start one run alike: the first rank's model goes to all, and ranks that disagree are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import lightning
import torch
import torch.distributed
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.arguments import Facts, as_text, digest, parts, settings, shapes, tensors
from fl_lightning.engine.devices.ranks import START
from fl_lightning.engine.devices.strategy import busy, waits
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
    trainer = orchestrator.trainer
    device = orchestrator.device
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
    if trainer.world_size == 1:
        return
    facts: Facts = {}
    for kind, made in (("client optimizer", optimizers), ("server optimizer", trainer.optimizers)):
        for number, optimizer in enumerate(made, 1):
            facts[f"{kind} {number}"] = as_text((type(optimizer), settings_of(optimizer)))
    for number, config in enumerate(trainer.lr_scheduler_configs, 1):
        facts[f"schedule {number}"] = as_text(config.scheduler)
    facts["the model after on_fit_start"] = _digest(tensors(orchestrator))
    check_alike(trainer, facts)


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
    names = dict.fromkeys(name for rank_facts in everywhere for name in rank_facts)
    differences = []
    for name in names:
        difference = _difference(name, [rank_facts.get(name) for rank_facts in everywhere])
        if difference is not None:
            differences.append(difference)
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise ConfigurationError(
            f"ranks differ: {'; '.join(differences[:3])}{more}: start all ranks with the same settings, data and seeds"
        )


def _difference(name: str, facts: list[str | None]) -> str | None:
    """Say how a fact, one for each rank, first differs from rank 0's; None if it does not."""
    first = facts[0]
    others = [fact for fact in facts if fact != first]
    if not others:
        return None
    other = others[0]
    ranks = [str(rank) for rank, fact in enumerate(facts) if fact == other]
    word = "ranks" if len(ranks) > 1 else "rank"
    start = max(0, _first_difference(first or "", other or "") - SHOWN_LETTERS // 2)
    return f"{name} is {_excerpt(first, start)} on rank 0 and {_excerpt(other, start)} on {word} {', '.join(ranks)}"


def _first_difference(first: str, other: str) -> int:
    """Return the place of the first letter in which two texts differ; 0 if one text begins with the other."""
    for place, (letter, other_letter) in enumerate(zip(first, other, strict=False)):
        if letter != other_letter:
            return place
    return 0


def _excerpt(text: str | None, start: int) -> str:
    """Cut a few letters from a fact, for a message; an ellipsis stands for what is left out before and after."""
    if text is None:
        return "missing"
    end = start + SHOWN_LETTERS
    excerpt = " ".join(text[start:end].split())
    if start:
        excerpt = f"…{excerpt}"
    if text[end:]:
        excerpt = f"{excerpt}…"
    return excerpt


def _facts(orchestrator: Server) -> Facts:
    """Collect what a rank starts from, apart from the values of tensors: settings, data, rules, the model's parts."""
    trainer = orchestrator.trainer
    data = orchestrator.data
    client = orchestrator.client
    facts = {f"trainer.{name}": as_text(getattr(trainer, name)) for name in TRAINER}
    facts |= {f"version of {package.__name__}": str(package.__version__) for package in (torch, lightning)}
    facts |= {f"model.{name}": text for name, text in settings(orchestrator).items()}
    facts["local work"] = repr(getattr(orchestrator, "settings", None))
    facts["data"] = type(data).__name__
    facts |= {f"data.{name}": text for name, text in settings(data).items()}
    facts["clients' sizes"] = f"{int(data.sizes.sum())} examples of {data.num_clients} clients: {data.sizes.tolist()}"
    facts["clients' examples"] = data.fingerprint()
    callbacks = federated(trainer)
    facts["callbacks"] = as_text([type(callback) for callback in callbacks])
    for callback in callbacks:
        name = f"callback {type(callback).__name__}"
        facts[name] = facts.get(name, "") + as_text(callback)
    facts["dtype"] = str(torch.get_default_dtype())
    name = type(client).__name__
    facts |= {f"{name}.hparams.{key}": as_text(value) for key, value in client.hparams.items()}
    facts |= parts(client, name) | shapes(orchestrator)
    if trainer.ckpt_path:
        facts["the model in ckpt_path"] = _digest(orchestrator.state_dict())
    return {name: _shorten(text) for name, text in facts.items()}


def _shorten(text: str) -> str:
    """Replace the end of a long text by a digest of all of it, so that texts that differ still do."""
    return text if len(text) <= LONG else f"{text[:LONG]}{digest(text.encode())}"


def _digest(values: Mapping[str, Tensor]) -> str:
    return digest(as_text(values).encode())
