"""Reproduces the papers' tables and figures: trains the runs of every cell, and compares numbers with the papers'."""
