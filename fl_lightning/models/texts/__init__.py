"""Networks that read texts, and the LightningModule that trains language models."""
