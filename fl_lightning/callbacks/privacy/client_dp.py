"""ClientDP: the global model tells little of any one client."""

import math
from itertools import takewhile
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from fl_lightning import (
    Cohort,
    ConfigurationError,
    FederatedCallback,
    Metric,
    Server,
    check_positive,
    check_within,
    overrides,
    rules_of,
)
from fl_lightning.callbacks.privacy.accountant import Accountant, adaptive_noise
from fl_lightning.callbacks.privacy.private_rule import EPSILON, SAMPLINGS, PrivateRule, refuse_beside_the_update
from fl_lightning.callbacks.server.norm_clipping import clipping_factors
from fl_lightning.engine.rules.callback import streams

DELTA_POWER = -1.1  # of the number of clients (McMahan et al., 2018)
CLIP_RATE = 0.2  # of the adaptive clip (Andrew et al., 2021)
UNSAFE = {"updates", "weights", "shrinking", "reduction"}  # what no rule beside ClientDP may settle


class ClientDP(PrivateRule):
    """Clips each update, and adds noise to their sum: client-level differential privacy (McMahan et al., 2018).

    The update is (Σ_k Δ_k min(1, S / ‖Δ_k‖) + z S N(0, 1)) / C, where C is the number of clients that take part on
    average, so that a round without clients moves the model by noise, too. ``privacy/epsilon`` is the ε of all models
    so far, at δ: what they tell of one client's whole data. It covers neither the logged losses and accuracies, nor the
    choice among runs. ε is smallest with the :class:`PoissonSampler`, where neighbours are federations with and without
    a client; with other samplers, they are federations with another client in its place. A run that goes on with other
    noise, or another sampler, logs the ε of all its rounds together; rounds before the rule was in the list make ε
    infinite.

    A chain in which ε would be false is refused: with a rule that reads single updates or changes their weights, or
    with anything that clients send beside their updates. What a rule of your own does with the norms, weights or
    numbers of steps of a cohort is not seen: let no model depend on them. Clients' rules, compressors, the server's
    momentum and the like go with it, in any order: the noise is in the cohort's sum before they see it.

    Args:
        clip: S > 0, largest norm of an update; the first one if ``quantile`` is given.
        noise_multiplier: z > 0; the noise on the sum has the standard deviation z S in each coordinate.
        target_epsilon: ε > 0 after the last round; it sets the noise multiplier in place of ``noise_multiplier``, of a
            run that goes on with other settings that of the rounds that are left.
        delta: δ in (0, 1); by default N^-1.1 for N clients.
        quantile: share of the clients, in (0, 1), whose updates are to be within S: S then follows that quantile of
            the norms (Andrew et al., 2021, Algorithm 1). None for a fixed S.
        count_noise: σ_b, standard deviation of the noise on the number of clients whose updates are within S; by
            default C / 20, as in that paper, and at least z.

    Raises:
        ConfigurationError: an argument is out of range; both or none of ``noise_multiplier`` and ``target_epsilon`` are
            given; the chain or the draw of the cohorts would make ε false; the rounds so far have spent the target.
    """

    metrics = (
        EPSILON,
        Metric("privacy/clip", "Norm to which updates are clipped", "S, with an adaptive clip.", panel="adaptive clip"),
    )
    streams = True
    needs_each_client = "reads the norms of single updates"
    steps_alone = True
    may_read = frozenset({"examples"})  # what a client learns from its examples is in its update

    def __init__(
        self,
        clip: float = 1.0,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        delta: float | None = None,
        quantile: float | None = None,
        count_noise: float | None = None,
    ) -> None:
        if (noise_multiplier is None) == (target_epsilon is None):
            raise ConfigurationError(
                "give noise_multiplier or target_epsilon, got "
                f"{'neither' if target_epsilon is None else 'both'}: target_epsilon: 8 finds the noise for ε = 8"
            )
        positive = {"clip": clip, "noise_multiplier": noise_multiplier, "target_epsilon": target_epsilon}
        positive["count_noise"] = count_noise
        check_positive(**{name: value for name, value in positive.items() if value is not None})
        shares = {"delta": delta, "quantile": quantile}
        check_within("(0, 1)", **{name: value for name, value in shares.items() if value is not None})
        self.first_clip, self.noise_multiplier, self.target_epsilon = clip, noise_multiplier, target_epsilon
        self.delta, self.quantile, self.count_noise = delta, quantile, count_noise

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        orchestrator: Any = pl_module
        data, rules = orchestrator.data, rules_of(trainer)
        self._before = list(takewhile(lambda rule: rule is not self, rules))
        self._check_chain(orchestrator, rules)
        rounds, clients, self._drawn = trainer.max_epochs or 0, data.num_with_data, data.cohort_size
        super().on_train_start(trainer, pl_module)
        self._accountant = Accountant(data.sampler.sampling, self._drawn, clients)
        self._delta, left = self.delta or clients**DELTA_POWER, rounds - orchestrator.rounds_done
        noise = self._noise_for_target(rounds, left) if self.noise_multiplier is None else self.noise_multiplier
        self._noise, self._sum_noise = noise, noise
        if self.quantile is not None:
            self._count_noise = max(self._drawn / 20, noise) if self.count_noise is None else self.count_noise
            self._sum_noise = adaptive_noise(noise, self._count_noise)
        self._tell(type(data.sampler).__name__, rounds, left)

    @override
    def units(self, orchestrator: Server) -> int:
        return 1

    def _check_chain(self, orchestrator: Any, rules: list[FederatedCallback]) -> None:
        """Refuse what would make ε false, from what the other rules, the sampler and the orchestrator declare."""
        data = orchestrator.data
        sampler = type(data.sampler).__name__
        refusals = [
            (data.sampler.sampling is None, f"{sampler} draws cohorts with unknown chances: use PoissonSampler"),
            (data.availability, "availability changes the chance of a client to take part: leave it out"),
            (orchestrator.max_update_norm, "max_update_norm leaves clients out by the norms of others: leave it out"),
        ]
        for rule in rules:
            if rule is self:
                continue
            name, settled = type(rule).__name__, rule.settles & UNSAFE
            unread = self.refusal_of(rule)
            weighs = overrides(rule, "stream_weights") or "base weights" in rule.settles
            refusals += [
                (
                    not streams(rule),
                    f"{name} reads single updates, so one client may move the sum further: leave it out",
                ),
                (
                    settled,
                    f"{name} settles the {', '.join(settled)}, so one client may move the sum further: leave it out",
                ),
                (unread, ": ".join(unread or ())),
                (weighs and rule not in self._before, f"{name} changes the weights after the clip: leave it out"),
            ]
        for applies, reason in refusals:
            if applies:
                raise ConfigurationError(f"ClientDP: the guarantee would be false: {reason}")

    def _noise_for_target(self, rounds: int, left: int) -> float:
        """Return the noise of the rounds that are left; of a run that only goes on, the noise that it had."""
        if rounds < 1:
            raise ConfigurationError(
                f"target_epsilon needs the number of rounds, got trainer.max_epochs {rounds}: set it"
            )
        target, accountant = self.target_epsilon or 0.0, self._accountant
        number = SAMPLINGS.index(accountant.sampling)
        wanted = torch.tensor(
            [target, self._delta, rounds, number, accountant.drawn, accountant.of], dtype=torch.float64
        )
        found = self.state.get("found", torch.zeros(len(wanted) + 1, dtype=torch.float64))
        if not torch.equal(found[:-1], wanted):
            noise = accountant.noise_for(target, max(left, 1), self._delta, self.releases())
            self.state["found"] = found = torch.cat([wanted, wanted.new_tensor([noise])])
        return float(found[-1])

    def _tell(self, sampler: str, rounds: int, left: int) -> None:
        """Print the noise and the ε at the end of the run, and what the PoissonSampler would save."""
        told = f"ClientDP: noise multiplier {self._noise:.4g}"
        if rounds > 0:
            accountant, before = self._accountant, self.releases()
            spent = accountant.epsilon(self._noise, left, self._delta, before)
            told += f", ε = {spent:.3f} at δ = {self._delta:.2g} after {rounds} rounds"
            poisson = Accountant("poisson", self._drawn, accountant.of)
            if (other := poisson.epsilon(self._noise, left, self._delta, before)) < spent:
                rank_zero_warn(
                    f"ClientDP: with {sampler} ε will be {spent:.3f}, with data.sampler: PoissonSampler {other:.3f}"
                )
        rank_zero_info(told)

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        self._check_sent(orchestrator, cohort)
        round, clip = cohort.round, float(self.state.get("clip", self.first_clip))
        noise = torch.randn(len(cohort.anchor), generator=orchestrator.generator("client dp", round))
        noise = noise.to(cohort.anchor) * (self._sum_noise * clip / self._drawn)
        if self.quantile is not None:
            within = int((cohort.norms <= clip).sum()) if cohort.clients else 0
            drawn = float(torch.randn((), generator=orchestrator.generator("client dp count", round)))
            off = within - len(cohort.clients) / 2 + self._count_noise * drawn  # each client moves it by 1/2
            factor = math.exp(-CLIP_RATE * (off / self._drawn + 0.5 - self.quantile))
            self.state["clip"] = torch.tensor(clip * factor, dtype=torch.float64)
            orchestrator.log_round("privacy/clip", clip)
        self.record(self._accountant, self._noise, clip, torch.ones(1, dtype=torch.int64))
        orchestrator.log_round(EPSILON.name, self.epsilon(self._delta))
        if not cohort.clients:
            return cohort.plus(noise)
        return cohort.replace(weights=clipping_factors(cohort.norms, clip) / self._drawn).plus(noise)

    def _check_sent(self, orchestrator: Server, cohort: Cohort) -> None:
        """Refuse what clients send beside their updates, and weights of rules before this one that differ."""
        refuse_beside_the_update(self, orchestrator, cohort)
        weighs = next((rule for rule in self._before if overrides(rule, "stream_weights")), None)
        if weighs is not None and not torch.allclose(cohort.weights, cohort.weights[:1], rtol=1e-9, atol=0):
            raise ConfigurationError(
                f"ClientDP: the guarantee would be false: {type(weighs).__name__} gives clients different weights, "
                "where each must count the same: leave it out"
            )

    @override
    def stream_weights(self, orchestrator: Server, cohort: Cohort, weights: Tensor) -> Tensor:
        return clipping_factors(cohort.norms, float(self.state.get("clip", self.first_clip)))
