"""FineTuning: each client is served by its own end."""

from lib.two_numbers import served

from fl_lightning.callbacks import FineTuning


def test_the_clients_ends() -> None:
    """From the mean (2, -½) of the first round, clients end in (3, ½) and (5, -2.5)."""
    assert served(FineTuning(), rounds=2) == ([4.0, -1.0], [[3.0, 0.5], [5.0, -2.5]])
