"""IFCA: each client trains the one of several models that fits it best."""

from collections.abc import Mapping

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Buffers, Cohort, FederatedCallback, LocalRun, Server, check_at_least


class IFCA(FederatedCallback):
    """Trains several models, of which each client takes the one with its smallest loss (Ghosh et al., 2020).

    A client's training starts from the model with the smallest mean loss on its examples, and the server averages the
    updates of those that took the same model (Algorithm 1, model averaging). The first model is the module's initial
    one; the others have new initial values, by ``reset_parameters`` of its layers. Buffers are averaged over all
    clients. The global model moves by the mean of all updates, and serves nobody. Evaluating all models costs a client
    a pass over its data for each.

    Args:
        clusters: number of models, at least 1.

    Raises:
        ConfigurationError: ``clusters`` is less than 1.
    """

    broadcasts = ("models",)
    reads = frozenset({"examples"})

    def __init__(self, clusters: int = 2) -> None:
        check_at_least(1, clusters=clusters)
        self.clusters = clusters

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Server)
        self._chosen: dict[int, int] = {}
        if "models" not in self.state:
            others = [self._initial(pl_module, cluster) for cluster in range(1, self.clusters)]
            self.state["models"] = torch.stack([pl_module.params.clone(), *others])

    def _initial(self, orchestrator: Server, cluster: int) -> Tensor:
        """Draw new parameters (P,) for a cluster's model."""
        with orchestrator.server_side(f"ifca {cluster}"), orchestrator.at(orchestrator.params):
            for layer in orchestrator.client.modules():
                if callable(reset := getattr(layer, "reset_parameters", None)):
                    reset()
            return orchestrator.params.clone()

    @override
    def start(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        models = self.recall("models", params.expand(self.clusters, -1))
        losses = torch.stack([orchestrator.client_loss(client, model) for model in models])
        self._chosen[client] = int(losses.argmin())
        return models[self._chosen[client]].clone(), buffers

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.send("cluster", torch.tensor(self._chosen[run.client]))

    @override
    def sends(self, orchestrator: Server) -> Mapping[str, Tensor]:
        return {"cluster": torch.tensor(0)}

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        models = self.recall("models", update).clone()
        chosen = torch.tensor([int(result.vectors["cluster"]) for result in cohort.results])
        for cluster in range(self.clusters):
            shares = cohort.weights * (chosen == cluster)
            if shares.any():
                models[cluster] += cohort.combine(shares / shares.sum() @ cohort.mixing)
        self.state["models"] = models
        return update
