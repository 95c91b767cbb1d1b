"""The run folder on disk: names of its files, its lock, metrics.csv and checkpoints."""
