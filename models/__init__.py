"""Networks, and the LightningModules that train them on a client."""

if __name__ != "fl_lightning.models":
    raise ImportError(f"import this package as fl_lightning.models, not as {__name__}: under two names every class would exist twice")
