"""The engine: rounds of any LightningModule. It knows no algorithm, no run folder and no screen."""
