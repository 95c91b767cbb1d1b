"""AdamMoments: local optimizers whose moments travel with the model."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, LocalRun, Server

MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names in the state of Adam and AdamW
STEP = "step"
ADAMS = (torch.optim.Adam, torch.optim.AdamW)


class AdamMoments(FederatedCallback):
    """Lets each client's Adam or AdamW go on with the mean of the clients' moments, in place of starting anew.

    In round 1, the moments m and v and the number of steps t are zero, as in an optimizer that has just been made.
    Client k starts from the server's m, v (P,) and t, and sends those of its optimizer after its last step; the server
    averages each with the clients' weights in the round: m = Σ p_k m_k, v = Σ p_k v_k, t = Σ p_k t_k. One client alone
    trains as an optimizer that never stops.

    Clients upload three times as much, and receive three times as much. No paper states this rule; FedAdamW (Liu et
    al., 2025) averages v alone, one number for each block of parameters.

    Raises:
        ConfigurationError: when a client begins, an optimizer of it is not torch's Adam or AdamW without ``amsgrad``,
            or some of its parameters stay with it.
    """

    broadcasts = (*MOMENTS, STEP)

    @override
    def sends(self, orchestrator: Server) -> Mapping[str, Tensor]:
        return {**dict.fromkeys(MOMENTS, orchestrator.params), STEP: torch.zeros(1)}

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        self._check(run)
        start = torch.zeros_like(run.anchor)
        step = self.recall(STEP, torch.zeros(1))
        if not step.any():
            return
        moments = {name: orchestrator.split(self.recall(name, start).clone()) for name in MOMENTS}
        places = _places(run)
        for row, own in enumerate(orchestrator.flat.parameters):
            if optimizer := places.get(id(own)):
                on_device = optimizer.defaults["capturable"] or optimizer.defaults["fused"]
                state = optimizer.state[own]
                state[STEP] = step[0].to(own.device if on_device else "cpu", torch.float32).clone()
                state |= {name: moments[name][row].to(own) for name in MOMENTS}

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        places = _places(run)
        vectors = {name: torch.zeros_like(run.anchor) for name in MOMENTS}
        parts = {name: orchestrator.split(vector) for name, vector in vectors.items()}
        steps = 0.0
        for row, own in enumerate(orchestrator.flat.parameters):
            state = places[id(own)].state[own] if id(own) in places else {}
            if state:  # else the parameter has had no gradient
                steps = max(steps, float(state[STEP]))
                for name in MOMENTS:
                    parts[name][row].copy_(state[name])
        run.send(STEP, torch.tensor([steps]))
        for name, vector in vectors.items():
            run.send(name, vector)

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        shares = (cohort.weights / cohort.weights.sum()).tolist()
        for name in (*MOMENTS, STEP):
            vectors = [result.vectors[name] for result in cohort.results]
            mean = torch.zeros_like(vectors[0])
            for share, vector in zip(shares, vectors, strict=True):
                mean.add_(vector.to(mean), alpha=share)
            self.state[name] = mean

    def _check(self, run: LocalRun) -> None:
        name, module = type(self).__name__, type(run.module).__name__
        for optimizer in run.optimizers:
            if type(optimizer) not in ADAMS or optimizer.defaults["amsgrad"]:
                got = type(optimizer).__name__
                raise ConfigurationError(
                    f"{name} needs clients that train by torch's Adam or AdamW without amsgrad, got {got}: let "
                    f"{module} use AdamW, or leave {name} out"
                )
        if run.num_shared < len(run.anchor):
            raise ConfigurationError(f"{name} needs a model that is the same for all clients: leave out {name}")


def _places(run: LocalRun) -> dict[int, Optimizer]:
    """Return the optimizer of each parameter, by the parameter's identity."""
    places = dict[int, Optimizer]()
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            places |= {id(own): optimizer for own in group["params"]}
    return places
