"""AveragedMoments: local optimizers whose moments travel with the model."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, LocalRun, Server

MOMENTS: Mapping[type[Optimizer], tuple[str, ...]] = {
    SGD: ("momentum_buffer",),
    Adam: ("exp_avg", "exp_avg_sq"),
    AdamW: ("exp_avg", "exp_avg_sq"),
}
STEP = "step"  # in the state of Adam and AdamW, the number of steps, by which moments are corrected


class AveragedMoments(FederatedCallback):
    """Lets each client's SGD, Adam or AdamW go on with the mean of the clients' moments, in place of starting anew.

    Client k starts from the server's moments m (M, P) and number of steps t, and sends those of its optimizer after its
    last step; the server averages both with the clients' weights in the round: m = Σ p_k m_k, t = Σ p_k t_k. With SGD,
    the one moment is the momentum (MFL, Liu et al., 2020); with Adam and AdamW, the two are the means of
    the gradient and of its square. One client alone trains as an optimizer that never stops. Without momentum, SGD has
    no moments, and trains as without the rule. Parameters that stay with a client start anew.

    With M moments, clients send and receive 1 + M times as much. FedAdamW (Liu et al., 2025) is another rule: the
    server averages the second moment alone, one number for each block of parameters, and clients are pulled to the last
    global update.

    Raises:
        ConfigurationError: when a client begins, an optimizer of it is none of torch's three, or has ``amsgrad``.
    """

    broadcasts = ("moments", STEP)

    @override
    def sends(self, orchestrator: Server) -> Mapping[str, Tensor]:
        params = orchestrator.params
        return {"moments": params.new_zeros(0, len(params)), STEP: torch.zeros(1, dtype=params.dtype)}

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        self._check(run)
        moments = self.recall("moments", run.anchor.new_zeros(0, len(run.anchor)))
        step = self.recall(STEP, torch.zeros(1, dtype=run.anchor.dtype))[0]
        if not step:
            return
        parts = [orchestrator.split(moment.clone()) for moment in moments]
        for row, own, optimizer in self._shared(orchestrator, run):
            state = optimizer.state[own]
            for name, part in zip(MOMENTS[type(optimizer)], parts, strict=False):
                state[name] = part[row].to(own)
            if state and type(optimizer) is not SGD:
                on_device = optimizer.defaults["capturable"] or optimizer.defaults["fused"]
                state[STEP] = step.to(own.device if on_device else "cpu", torch.float32, copy=True)

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        count = max(len(names) for names in MOMENTS.values())
        moments = run.anchor.new_zeros(count, len(run.anchor))
        parts = [orchestrator.split(moment) for moment in moments]
        used = 0
        step = torch.zeros(1, dtype=run.anchor.dtype)
        for row, own, optimizer in self._shared(orchestrator, run):
            state = optimizer.state[own]
            for place, name in enumerate(MOMENTS[type(optimizer)]):
                if state.get(name) is not None:  # else the parameter has had no gradient, or SGD no momentum
                    parts[place][row].copy_(state[name])
                    used = max(used, place + 1)
                    step = torch.maximum(step, torch.as_tensor(state.get(STEP, 1.0)).to(step))
        run.send("moments", moments[:used])
        run.send(STEP, step)

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        shares = (cohort.weights / cohort.weights.sum()).tolist()
        for name in self.broadcasts:
            sent = [result.vectors[name] for result in cohort.results]
            mean = torch.zeros_like(max(sent, key=len))
            for share, value in zip(shares, sent, strict=True):
                mean[: len(value)].add_(value.to(mean), alpha=share)
            self.state[name] = mean

    def _shared(self, orchestrator: Server, run: LocalRun) -> Iterator[tuple[int, Tensor, Optimizer]]:
        """Yield the number, the parameter and the optimizer of each parameter that does not stay with the client."""
        is_shared = torch.zeros(len(run.anchor), dtype=torch.bool, device=run.anchor.device)
        is_shared[run.shared.to(run.anchor.device)] = True
        optimizers = dict[Tensor, Optimizer]()
        for optimizer in run.optimizers:
            for group in optimizer.param_groups:
                optimizers |= dict.fromkeys(group["params"], optimizer)
        rows = zip(orchestrator.flat.parameters, orchestrator.split(is_shared), strict=True)
        for row, (own, shared) in enumerate(rows):
            if own in optimizers and bool(shared.all()):
                yield row, own, optimizers[own]

    def _check(self, run: LocalRun) -> None:
        for optimizer in run.optimizers:
            if type(optimizer) not in MOMENTS or optimizer.defaults.get("amsgrad"):
                name, got = type(self).__name__, type(optimizer).__name__
                raise ConfigurationError(
                    f"{name} needs clients that train by torch's SGD, Adam or AdamW without amsgrad, got {got}: let "
                    f"{type(run.module).__name__} use one of these, or leave {name} out"
                )
