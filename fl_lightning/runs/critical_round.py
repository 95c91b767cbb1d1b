"""Critical round: where the coherence that a run has logged turns negative."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


def critical_round(coherence: Sequence[float], window: int = 5) -> int | None:
    """Find the round after which the clients no longer strengthen each other, FedLAW's "critical point" (Section 5.2).

    The paper reads this round off a curve, where the coherence has fallen from positive values to about zero. Here it
    is the first round with a negative centred mean after a round with a positive centred mean. The centred mean covers
    the round and (window - 1) / 2 rounds on either side (fewer on the left of the first rounds), so that a single round
    does not decide; a mean over past rounds alone would react late.

    >>> from fl_lightning.runs.critical_round import critical_round
    >>> coherence = [2, 3, -1, 2, -3, -6]
    >>> critical_round(coherence, window=1)  # the first negative value
    3
    >>> critical_round(coherence, window=3)  # the mean of -1, 2 and -3
    4

    Args:
        coherence: values of ``coherence/local`` in rounds 1, 2, …
        window: number of rounds in a mean, odd.

    Returns:
        The round, 1, 2, …; None if there is none so far.
    """
    half = window // 2
    positive = False  # whether a centred mean so far was
    for index in range(len(coherence) - half):
        mean = fmean(coherence[max(index - half, 0) : index + half + 1])
        if positive and mean < 0:
            return index + 1
        positive = positive or mean > 0
    return None
