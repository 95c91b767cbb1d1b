"""FedExP by hand."""

from typing import Any

import pytest
from lib.hand_made import serve
from lib.toy import close

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import FedExP


@pytest.mark.parametrize(
    ("updates", "step"),
    [([[3.0, 0.0], [-1.0, 0.0]], (2.5, 0.0)), ([[3.0, 0.0], [0.0, 4.0]], (1.5, 2.0)), ([[0.0, 0.0]] * 2, (0.0, 0.0))],
)
def test_longer_where_updates_disagree(updates: Any, step: Any) -> None:
    """10 / 4 / 1 = 2.5 times the mean (1, 0); 25 / 4 / 6.25 = 1 times (1.5, 2)."""
    server, _ = serve(updates, FedExP(epsilon=0.0))
    assert close(server.params, step)


def test_epsilon() -> None:
    """10 / 4 / (1 + 1) = 1.25."""
    server, _ = serve([[3.0, 0.0], [-1.0, 0.0]], FedExP(epsilon=1.0))
    assert close(server.params, [1.25, 0.0])
    with pytest.raises(ConfigurationError, match="epsilon must be"):
        FedExP(-1.0)
