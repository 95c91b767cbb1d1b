"""Clients that send something else than what they learned, to try server rules on, and clients that fail."""
