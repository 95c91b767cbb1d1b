"""Networks that find objects in images, and the LightningModule that trains them."""
