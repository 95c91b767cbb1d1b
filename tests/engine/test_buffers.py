"""Batch normalisation under every server rule: buffers are averaged by n_k and enter nothing else."""

import pytest
import torch
from rules import SERVER_RULES, TinyClassifier, run
from toy import Capture, close

PARAMETERS = 8 + 15  # batch normalisation's weight and bias, a linear layer's 4 x 3 + 3


@pytest.mark.parametrize("name", SERVER_RULES)
def test_buffers_enter_no_rule(name: str) -> None:
    """Clients of 4, 6, … 14 examples in batches of 4 take 1, 2, 2, 3, 3, 4 steps: at most 4 a round, 8 in two."""
    rule, capture = SERVER_RULES[name](), Capture()
    orchestrator = run(rule, capture)
    norm = orchestrator.client.net[0]  # type: ignore[index, union-attr]
    cohort = capture.cohort
    assert cohort.deltas.shape == (6, PARAMETERS)
    assert cohort.anchor.shape == (PARAMETERS,)
    assert close(cohort.gram, cohort.deltas @ cohort.deltas.T)
    held = [state for state in rule.state.values() if state.is_floating_point() and state.numel() > 6]
    assert all(state.shape == (PARAMETERS,) for state in held)
    assert (norm.running_var > 0).all()
    assert norm.num_batches_tracked.dtype == torch.int64
    assert norm.num_batches_tracked == 8
    shares = cohort.num_samples.double() / cohort.num_samples.sum()
    expected = sum(
        share * buffers["net.0.running_var"] for share, buffers in zip(shares, capture.buffers[6:], strict=True)
    )
    assert close(norm.running_var, expected)


def test_the_tiny_classifier_is_as_small_as_it_says() -> None:
    assert sum(p.numel() for p in TinyClassifier().parameters()) == PARAMETERS
