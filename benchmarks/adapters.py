"""Adapt a GPT-2 with random weights by LoRA, in a federation and in a plain loop: memory, and tokens a second.

    python -m benchmarks.adapters --layers 26 --width 1280
    python -m benchmarks.adapters --layers 26 --width 1280 --frozen bfloat16 --checkpointing
    python -m benchmarks.adapters --layers 50 --width 1280 --model_of_memory

Each figure is of a process of its own. *Memory* is the most that a process has held: its own memory, and the pages of
files that it has read; on a GPU, what torch has allocated there. *Tokens a second* are those of the median round after
the first, or of as many steps of the plain loop.

``--model_of_memory`` measures federations of small networks, fits their memory by least squares as a sum of parts, and
compares the network that was asked for with what the parts say. The parts: a constant, bytes for each byte of frozen
weights, for each number that trains, for each activation (tokens × layers × width) and for each logit (tokens ×
vocabulary), the tokens being those of a batch.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from argparse import Namespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from benchmarks.common import Clock, bare_trainer, quiet
from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.engine.devices.strategy import finish_work
from fl_lightning.models import CausalLM

GIB = 2**30
SMALL = ((2, 640), (8, 640), (16, 640), (4, 1280), (12, 1280))  # layers and widths of the networks that are fitted
BATCHES = ((1, 32), (4, 32), (4, 128))  # texts of a batch, and their tokens
PARTS = ("constant", "a byte of frozen weights", "a number that trains", "an activation", "a logit")


def language_model(asked: Namespace) -> CausalLM:
    settings = {"n_layer": asked.layers, "n_embd": asked.width, "n_head": asked.width // 64, "n_positions": 128}
    settings |= {"vocab_size": asked.vocabulary, "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    return CausalLM(
        "gpt2",
        settings,
        weights=False,
        adapt="lora",
        frozen_dtype=asked.frozen,
        checkpointing=asked.checkpointing,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
    )


def texts(asked: Namespace) -> torch.Tensor:
    """Random tokens (texts of all clients, length)."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(1, asked.vocabulary, (asked.clients * asked.steps * asked.batch, asked.length), generator=draw)


def federated(asked: Namespace, module: CausalLM) -> list[float]:
    """Train rounds of all clients; seconds of each."""
    clock = Clock()
    data = FederatedDataModule.from_loaders(
        TensorDataset(texts(asked)), num_clients=asked.clients, batch_size=asked.batch
    )
    trainer = bare_trainer(asked.rounds, clock, accelerator=asked.accelerator, devices=1, precision=asked.precision)
    trainer.fit(FederatedOrchestrator(module), datamodule=data)
    return clock.seconds


def plain(asked: Namespace, module: CausalLM) -> list[float]:
    """Take as many steps as rounds of all clients, by hand; seconds of those of each round."""
    where = torch.device(asked.accelerator)
    module.to(where)
    tokens = texts(asked).to(where)
    optimizer = torch.optim.AdamW([own for own in module.parameters() if own.requires_grad], lr=1e-3)
    seconds = []
    for _ in range(asked.rounds):
        start = time.perf_counter()
        for batch in torch.split(tokens, asked.batch):
            optimizer.zero_grad()
            with torch.autocast(where.type, torch.bfloat16, enabled=asked.precision == "bf16-mixed"):
                loss = module.training_step(batch, 0)["loss"]
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
        finish_work(where)
        seconds.append(time.perf_counter() - start)
    return seconds


def run_here(way: str, asked: Namespace) -> dict[str, float]:
    """Run one way in this process: bytes of memory, tokens a second, frozen bytes, and numbers that train."""
    quiet()
    module = language_model(asked)
    trained = [own.numel() for own in module.parameters() if own.requires_grad]
    frozen = [own.nbytes for own in module.parameters() if not own.requires_grad]
    seconds = {"ours": federated, "plain": plain}[way](asked, module)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if asked.accelerator == "cuda":
        memory = torch.cuda.max_memory_allocated()
    speed = texts(asked).numel() / float(np.median(seconds[1:]))
    return {"memory": memory, "speed": speed, "frozen": sum(frozen), "trained": sum(trained)}


def run_apart(way: str, asked: Namespace, **changed: Any) -> dict[str, float]:
    """Run one way in a process of its own; see :func:`run_here`."""
    settings = json.dumps({**vars(asked), **changed, "child": None})
    command = [sys.executable, "-m", "benchmarks.adapters", "--child", way, settings]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-1000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def parts_of(asked: Namespace, found: dict[str, float]) -> list[float]:
    """Count the bytes and numbers of a run that each of :data:`PARTS` is multiplied by."""
    tokens = asked.batch * asked.length
    return [1, found["frozen"], found["trained"], tokens * asked.layers * asked.width, tokens * asked.vocabulary]


def fit_memory(asked: Namespace) -> np.ndarray[Any, Any]:
    """Measure federations of small networks; the parts of their memory by least squares, weighted by 1 / memory."""
    rows, memory = [], []
    for layers, width in SMALL:
        for batch, length in BATCHES:
            small = Namespace(**{**vars(asked), "layers": layers, "width": width, "batch": batch, "length": length})
            found = run_apart("ours", small)
            rows.append(parts_of(small, found))
            memory.append(found["memory"])
            print(f"  {layers} layers of {width}, {batch} × {length} tokens: {memory[-1] / GIB:.2f} GiB", flush=True)
    scaled = np.array(rows) / np.array(memory)[:, None]
    unit = scaled.max(0)
    return np.asarray(np.linalg.lstsq(scaled / unit, np.ones(len(memory)), rcond=None)[0] / unit)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=640, help="a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--length", type=int, default=32, help="tokens of a text, at most 128")
    parser.add_argument("--batch", type=int, default=4, help="texts of a batch")
    parser.add_argument("--steps", type=int, default=1, help="batches of a client")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--frozen", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), default="32-true")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model_of_memory", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        way, settings = asked.child
        print(json.dumps(run_here(way, Namespace(**json.loads(settings)))))
        return
    ours = run_apart("ours", asked)
    by_hand = run_apart("plain", asked)
    print(
        f"{(ours['frozen'] / (2 if asked.frozen == 'bfloat16' else 4) + ours['trained']) / 1e6:,.0f} million numbers, "
        f"{ours['trained'] / 1e6:.2f} million train: memory {ours['memory'] / GIB:.2f} GiB, plain loop "
        f"{by_hand['memory'] / GIB:.2f} GiB (ratio {ours['memory'] / by_hand['memory']:.2f}); tokens a second "
        f"{ours['speed']:,.0f}, plain loop {by_hand['speed']:,.0f} (ratio {ours['speed'] / by_hand['speed']:.2f})",
        flush=True,
    )
    if asked.model_of_memory:
        parts = fit_memory(asked)
        for name, size in zip(PARTS, parts, strict=True):
            print(f"  {name}: {size / GIB:.2f} GiB" if name == "constant" else f"  {name}: {size:.2f} bytes")
        told = float(parts @ parts_of(asked, ours))
        print(f"by the parts {told / GIB:.2f} GiB, measured {ours['memory'] / GIB:.2f} GiB")


if __name__ == "__main__":
    main()
