"""One config and its run: the command line of ``fit``, ``test`` and ``data``."""
