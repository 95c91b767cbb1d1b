"""Train rounds in JAX, one for each line of the standard input, and print each round's seconds.

A round is one jitted function: the batches are gathered by indices that NumPy draws, ``vmap`` goes over the clients,
``scan`` over the steps, and the average is the new model. The first round compiles.

    yes | head -20 | python benchmarks/peers/with_jax.py INPUTS HIDDEN CLIENTS SAMPLES BATCH RATE

HIDDEN is the number of units of the MLP's hidden layer, 0 for logistic regression.
"""

import sys
import time
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CLASSES = 10
Params = list[tuple[jax.Array, jax.Array]]


def loss(params: Params, inputs: jax.Array, classes: jax.Array) -> jax.Array:
    *hidden, (weight, bias) = params
    for matrix, shift in hidden:
        inputs = jax.nn.relu(inputs @ matrix + shift)
    scores = jax.nn.log_softmax(inputs @ weight + bias)
    return -jnp.take_along_axis(scores, classes[:, None], 1).mean()


def train(params: Params, inputs: jax.Array, classes: jax.Array, order: Any, rate: float) -> tuple[Params, jax.Array]:
    """Train a round: ``order`` (N, steps, batch) indexes the clients' ``inputs`` (N, n, d) and ``classes`` (N, n)."""

    def local(x: jax.Array, y: jax.Array, indices: jax.Array) -> tuple[Params, jax.Array]:
        def step(model: Params, batch: jax.Array) -> tuple[Params, jax.Array]:
            value, grads = jax.value_and_grad(loss)(model, x[batch], y[batch])
            return jax.tree.map(lambda parameter, grad: parameter - rate * grad, model, grads), value

        return jax.lax.scan(step, params, indices)

    trained, losses = jax.vmap(local)(inputs, classes, order)
    return jax.tree.map(lambda stack: stack.mean(0), trained), losses.mean()


if __name__ == "__main__":
    size, units, num_clients, samples, batch = map(int, sys.argv[1:6])
    draw, widths = np.random.default_rng(0), [size, *([units] if units else []), CLASSES]
    x = jnp.asarray(draw.standard_normal((num_clients, samples, size), dtype=np.float32))
    y = jnp.asarray(draw.integers(CLASSES, size=(num_clients, samples)))
    model = [
        (jnp.asarray(draw.normal(0, a**-0.5, (a, b)).astype(np.float32)), jnp.zeros(b)) for a, b in pairwise(widths)
    ]
    one_round = jax.jit(train, static_argnums=4)
    rows = np.tile(np.arange(samples, dtype=np.int32), (num_clients, 1))
    for _ in sys.stdin:
        start = time.perf_counter()
        order = draw.permuted(rows, axis=1).reshape(num_clients, -1, batch)
        model, mean = jax.block_until_ready(one_round(model, x, y, order, float(sys.argv[6])))
        print(time.perf_counter() - start, flush=True)
