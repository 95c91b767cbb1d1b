"""The callbacks that record a run: config.yaml, environment.yaml, the partition."""
