"""MIFA by hand: four clients, of which two have ever taken part."""

import torch
from lib.hand_made import serve
from lib.toy import close

from fl_lightning import ClientResult, Cohort
from fl_lightning.callbacks import MIFA, NormClipping


def test_clients_that_are_away_count_with_their_last_update() -> None:
    """(4 + 8 + 0 + 0) / 4 = 3; then client 0 sends 0, and client 1's 8 stays: 2."""
    server, _ = serve([[4.0], [8.0], [5.0], [5.0]], MIFA(), cohorts=[[0, 1]], samples=[9, 1, 1, 1])
    assert close(server.params, [3.0])
    result = ClientResult(0, 9, 1, 0.0, 1.0)
    server.take(Cohort.collect(2, server.params.clone(), torch.zeros(1, 1, dtype=torch.float64), [result]))
    assert close(server.params, [5.0])


def test_a_client_without_data_does_not_count() -> None:
    assert close(serve([[4.0], [8.0], [0.0]], MIFA(), samples=[1, 1, 0])[0].params, [6.0])


def test_it_remembers_updates_as_the_rules_before_it_left_them() -> None:
    """4 and 8 become 3 and 3; the second round changes nothing: 3 each time."""
    assert close(serve([[4.0], [8.0]], NormClipping(3.0), MIFA(), rounds=2)[0].params, [6.0])
