"""Experiments, one YAML each; ``fl-lightning fit --config NAME.yaml`` finds them by bare name."""

if __name__ != "fl_lightning.configs":
    raise ImportError(f"import this package as fl_lightning.configs, not as {__name__}: under two names every class would exist twice")
