"""What W&B, MLflow, TensorBoard and the run folder get of a run."""
