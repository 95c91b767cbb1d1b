"""InForks: several devices as copies of a test's process, which saves their imports."""

from fl_lightning.engine.devices.strategy import ClientParallelStrategy


class InForks(ClientParallelStrategy):
    """Starts the ranks of a fit by fork, rank 0 too: what rules keep ends with the fit, and no such test reads it."""

    start_methods = ("fork",)
