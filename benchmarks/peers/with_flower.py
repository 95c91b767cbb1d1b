"""Train the case with Flower's simulation: one Ray actor, clients whose data stay in memory, a loop on tensors.

``run_simulation`` is the engine of ``flwr run`` in one process; evaluation is off.
"""

import logging
from typing import Any

import torch
import torch.nn.functional as F
from case import BATCH, CLASSES, CLIENTS, INPUTS, RATE, SAMPLES, Stopwatch, clients, rounds
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    inputs, classes = (torch.from_numpy(array[client]) for array in clients())
    model = torch.nn.Linear(INPUTS, CLASSES)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    order = torch.randperm(SAMPLES)
    for x, y in zip(inputs[order].split(BATCH), classes[order].split(BATCH), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": SAMPLES})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    watch = Stopwatch()
    zeros = {"weight": torch.zeros(CLASSES, INPUTS), "bias": torch.zeros(CLASSES)}

    def after_round(_: int, arrays: Any) -> None:
        watch.stamp()

    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    result = strategy.start(grid, ArrayRecord(zeros), num_rounds=rounds(), evaluate_fn=after_round)
    watch.report(*result.arrays.to_torch_state_dict().values())


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=config)
