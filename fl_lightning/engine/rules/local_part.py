"""ClientPart: the part of the model that stays with each client, by the names that a rule gives."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from fl_lightning.engine.module.state import Buffers
from fl_lightning.engine.rules.callback import FederatedCallback
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.updates.cohort import ClientResult
from fl_lightning.errors import ConfigurationError, nearest


class ClientPart:
    """Parameters and buffers that a client keeps from round to round, in the state of the rule that names them.

    A client starts from its own part; before its first round, from the global model's. Its update is zero there, and
    its buffers there are the global model's, and so are zero the control variates and the like that rules send, so that
    nothing else in a round sees the part.

    Args:
        rule: the rule, whose ``local_part`` names parameters, buffers or submodules.
        orchestrator: the orchestrator, whose client module has them.

    Attributes:
        columns: (L,) the part's places in (P,) vectors.

    Raises:
        ConfigurationError: the client module has nothing of a name.
    """

    def __init__(self, rule: FederatedCallback, orchestrator: Server) -> None:
        parameters = orchestrator.flat.names
        buffers = orchestrator.buffer_names
        names = list(rule.local_part(orchestrator.client))
        for name in names:
            if not any(_inside(known, [name]) for known in (*parameters, *buffers)):
                known_names = [*dict(orchestrator.client.named_modules()), *parameters, *buffers]
                segments = dict.fromkeys(segment for known in known_names for segment in known.split("."))
                near = nearest(name.strip("*."), [*known_names, *segments]) or ", ".join(known_names[1:9])
                if near in segments and near not in known_names:
                    near = f"'*.{near}.*'"
                raise ConfigurationError(
                    f"{type(rule).__name__}: {type(orchestrator.client).__name__} has no parameter, buffer or "
                    f"submodule {name!r}: did you mean {near}?"
                )
        self.columns = orchestrator.mask_of(known for known in parameters if _inside(known, names)).nonzero().flatten()
        self._slots = {slot: f"local.{known}" for slot, known in enumerate(buffers) if _inside(known, names)}
        self._rule = rule
        self._shape = orchestrator.params.shape

    def start(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        """Return a model with the client's own part in place of that of the model given; see the hook of that name."""
        params = params.clone()
        buffers = list(buffers)
        params[self.columns] = self._rule.recall(f"local/{client}", params[self.columns])
        for slot, name in self._slots.items():
            if (value := buffers[slot]) is not None:
                buffers[slot] = self._rule.recall(f"{name}/{client}", value)
        return params, buffers

    personal = start

    def keep(self, run: LocalRun, update: Tensor) -> None:
        """Keep the part of a client that has trained, and make its update (P,) zero there."""
        self._rule.keep(run, "local", run.params[self.columns])
        now = run.buffers if self._slots else ()
        for slot, name in self._slots.items():
            if (value := now[slot]) is not None:
                self._rule.keep(run, name, value)
        update[self.columns] = 0

    def hide(self, update: Tensor, result: ClientResult, known: Buffers) -> None:
        """Put the global model's buffers in place of the client's own, and zeros into (P,) vectors that it sends."""
        for slot in self._slots:
            result.buffers[slot] = known[slot]
        for vector in (update, *result.vectors.values()):
            if vector.shape == self._shape:
                vector[self.columns] = 0  # of the update, too: an upload hook may have added noise there


def _inside(known: str, names: Sequence[str]) -> bool:
    """Tell whether a parameter or buffer has a name, lies in a submodule of that name, or fits a pattern."""
    in_submodule = f"{known}.".startswith(tuple(f"{name}." for name in names))
    return in_submodule or any(fnmatchcase(known, name) for name in names)
