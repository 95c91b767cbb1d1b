"""Measure size, work and time of the networks in the papers' experiments, next to the numbers that the papers print.

Multiply-adds are counted in the convolutions and linear layers of one image's forward pass. The time is the processor
time, which other programs disturb little, of one training step (SGD, batch 32) on one CPU thread; the median of a few.

    python -m benchmarks.networks [repetitions]
"""

import sys
import time
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fl_lightning import models

GREY, COLOUR, TINY = (1, 28, 28), (3, 32, 32), (3, 64, 64)
ROWS: list[tuple[str, tuple[int, int, int], str]] = [
    ("LogisticRegression()", GREY, ""),
    ("TwoNN()", GREY, "FedGH slides: 0.536M, 0.535M"),
    ("MultilayerPerceptron()", GREY, "FedLAW D.3: 784-200-200-10"),
    ("FedLAWLeNet()", GREY, ""),
    ("LeNet(in_channels=1, image_size=28)", GREY, ""),
    ("LeNet()", COLOUR, ""),
    ("PooledCNN()", GREY, "McMahan et al.: 1,663,370"),
    ("TwoLayerCNN()", COLOUR, "FedGH slides: 1.235M, 32.554M"),
    ("SimpleCNN()", COLOUR, "FedLAW D.3: 64·4·4 features"),
    ("CifarAlexNet()", COLOUR, ""),
    ("CifarResNet(8)", COLOUR, ""),
    ("CifarResNet(20)", COLOUR, "He et al.: 0.27M"),
    ("CifarResNet(56)", COLOUR, "He et al.: 0.85M"),
    ("CifarResNet(110)", COLOUR, "He et al.: 1.7M"),
    ("CifarResNet(56, width=4)", COLOUR, ""),
    ("TimmNetwork('densenet121')", COLOUR, ""),
    ("TimmNetwork('resnet18')", COLOUR, ""),
    ("TimmNetwork('resnet18', 200, stride=32)", TINY, "FedGH slides: 11.27M, 148.951M"),
    ("TimmNetwork('resnet18', 200, stride=16)", TINY, ""),
    ("TimmNetwork('mobilenetv2_100', 100)", COLOUR, ""),
    ("TimmNetwork('mobilenetv2_100', 200)", TINY, ""),
    ("WithGroupNorm(TimmNetwork('mobilenetv2_100', 100))", COLOUR, ""),
]


def multiply_adds(network: nn.Module, shape: tuple[int, int, int]) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:  # counts every multiply-add as two operations
        network.eval()(torch.zeros(1, *shape))
    return counter.get_total_flops() // 2


def step_time(network: nn.Module, shape: tuple[int, int, int], repetitions: int) -> float:
    """Median processor seconds of one training step."""
    optimizer = torch.optim.SGD(network.train().parameters(), lr=0.01)
    images, targets = torch.randn(32, *shape), torch.randint(10, (32,))
    times = []
    for _ in range(1 + repetitions):  # the first step warms up
        start = time.process_time()
        optimizer.zero_grad()
        F.cross_entropy(network(images), targets).backward()
        optimizer.step()
        times.append(time.process_time() - start)
    return median(times[1:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print("| network | image | parameters | multiply-adds | printed | ms a step |\n|---|---|---:|---:|---|---:|")
    for name, shape, printed in ROWS:
        network: nn.Module = eval(name, vars(models))
        size = sum(parameter.numel() for parameter in network.parameters())
        work, taken = multiply_adds(network, shape) / 1e6, 1000 * step_time(network, shape, repetitions)
        image = "×".join(map(str, shape))
        print(f"| `{name}` | {image} | {size:,} | {work:,.3f}M | {printed} | {taken:,.1f} |", flush=True)
