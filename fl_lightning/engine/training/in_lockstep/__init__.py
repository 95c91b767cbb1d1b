"""Clients that train at once, as the rows of one matrix."""
