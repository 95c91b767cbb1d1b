"""The examples that a client keeps back from training."""

import numpy as np
import torch
from torch import Tensor


def draw_held_out(num_samples: int, share: float, generator: np.random.Generator) -> Tensor:
    """Draw the examples that a client keeps back from training; at least one example stays in training.

    Args:
        num_samples: number of the client's examples.
        share: share to keep back, in [0, 1), rounded to whole examples.
        generator: source of all randomness.

    Returns:
        (num_samples,) bool, True for the examples to keep back.
    """
    mask = torch.zeros(num_samples, dtype=torch.bool)
    if (count := min(round(share * num_samples), num_samples - 1)) > 0:
        mask[torch.from_numpy(generator.choice(num_samples, count, replace=False))] = True
    return mask
