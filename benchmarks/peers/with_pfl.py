"""Train the case with pfl-research: PyTorch models and the simulated backend, without evaluation."""

import numpy as np
import torch
import torch.nn.functional as F
from case import BATCH, CLASSES, CLIENTS, INPUTS, RATE, SAMPLES, Stopwatch, clients, rounds
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Model(torch.nn.Linear):
    """Logistic regression, with the two methods that pfl asks for."""

    def loss(self, inputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self(inputs), classes)

    def metrics(self, inputs: torch.Tensor, classes: torch.Tensor) -> dict[str, object]:
        return {}


class Stamp(TrainingProcessCallback):
    """Notes the end of each round."""

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        watch.stamp()
        return False, Metrics()


def dataset(client: int) -> Dataset:
    order = torch.randperm(SAMPLES)
    return Dataset(raw_data=[tensor[client][order] for tensor in tensors])


if __name__ == "__main__":
    torch.set_num_threads(1)
    tensors = [torch.from_numpy(array) for array in clients()]
    network, watch = Model(INPUTS, CLASSES), Stopwatch()
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(np.arange(CLIENTS))))
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    watch.stamp()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds(), evaluation_frequency=rounds(), train_cohort_size=CLIENTS, val_cohort_size=0
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        callbacks=[Stamp()],
    )
    watch.report(network.weight.detach(), network.bias.detach())
