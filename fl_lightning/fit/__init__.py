"""The command line of one run: ``fit``, ``validate``, ``test``, ``predict`` and ``data``; and its configs."""
