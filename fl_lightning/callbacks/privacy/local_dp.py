"""LocalDP: clients add noise to their updates before they send them."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedCallback, LocalRun, Server, overrides
from fl_lightning.callbacks.privacy.noisy_clients import NoisyClients
from fl_lightning.engine.rules.declared import declares


class LocalDP(NoisyClients):
    """Clips each client's update, and adds noise before it is sent: local privacy (Kasiviswanathan et al., 2011).

    A client sends Δ min(1, S / ‖Δ‖) + z S N(0, 1). All that the server does with it costs no more privacy. What the
    server knows beside it is not covered: the number of examples, by which FedAvg weighs, and of steps (FedNova,
    FedCM). Rules that read training losses or class counts are refused. ``privacy/epsilon`` is what the updates of the
    client that sent most often tell of its data, whatever the server knows of all others; no sampling makes it smaller.
    An update that is late or left out has been sent all the same. Two updates of a client differ by at most 2 S.

    List the rule after those that correct the update, and before those that compress it, which cost no privacy then. A
    rule after it is refused if its ``upload`` reads more than the update (``post_processes``).

    Args:
        clip: S > 0, largest norm of an update.
        noise_multiplier: z > 0; each coordinate of the noise has the standard deviation z S.
        delta: δ in (0, 1).

    Raises:
        ConfigurationError: an argument is out of range; clients send more than their updates, a rule reads more, or a
            rule changes the update after the noise.
    """

    may_read = frozenset({"steps", "examples"})  # what a client learns from its examples is in its update

    @override
    def check(self, orchestrator: Any, rules: Sequence[FederatedCallback]) -> None:
        for rule in rules[rules.index(self) + 1 :]:
            if overrides(rule, "upload") and not declares(rule, "post_processes", ["upload"]):
                name = type(rule).__name__
                raise ConfigurationError(
                    f"LocalDP: {name} changes the update after the noise, from what may have none: list {name} before "
                    f"LocalDP, or declare post_processes = True in {name} if its upload reads the update alone"
                )
        super().check(orchestrator, rules)

    @override
    def sums(self, orchestrator: Server) -> Mapping[int, int]:
        late = orchestrator.data.turnout(orchestrator.rounds_done).late
        return self.made | dict.fromkeys(late, 1)

    @override
    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        self.made[run.client] = 1
        draw = orchestrator.generator("local dp", run.round, run.client)
        return self.add_noise(update * self.factors(update), draw)
