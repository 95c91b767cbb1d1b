"""``fl-lightning report``: run folders as one HTML page; ``fl-lightning dashboard``: a W&B workspace."""
