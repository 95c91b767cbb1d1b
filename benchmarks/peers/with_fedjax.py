"""Train the case with fedjax's FedAvg: a jitted step per client and batch."""

import fedjax
import jax
import jax.numpy as jnp
from case import BATCH, CLASSES, INPUTS, RATE, Stopwatch, clients, rounds
from fedjax.algorithms import fed_avg


def loss(params: dict[str, jax.Array], batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(batch["x"] @ params["weight"].T + params["bias"])
    return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()


if __name__ == "__main__":
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1),
    )
    datasets = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in zip(*clients(), strict=True)]
    state = algorithm.init({"weight": jnp.zeros((CLASSES, INPUTS)), "bias": jnp.zeros(CLASSES)})
    key, watch = jax.random.PRNGKey(0), Stopwatch()
    watch.stamp()
    for _ in range(rounds()):
        key, *keys = jax.random.split(key, len(datasets) + 1)
        state, _ = algorithm.apply(state, [(b"%d" % i, data, keys[i]) for i, data in enumerate(datasets)])
        jax.block_until_ready(state.params)
        watch.stamp()
    watch.report(state.params["weight"], state.params["bias"])
