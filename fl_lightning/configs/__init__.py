"""Experiments, one YAML each; ``fl-lightning fit --config NAME.yaml`` finds them by bare name."""

if __name__ != "fl_lightning.configs":
    raise ImportError(f"import fl_lightning.configs, not {__name__}: under two names every class would exist twice")
