"""``fl-lightning report``: run folders as one HTML page."""
