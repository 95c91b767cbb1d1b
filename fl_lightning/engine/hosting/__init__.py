"""The client module under the Trainer: its hooks, its evaluation, its checkpoints."""
