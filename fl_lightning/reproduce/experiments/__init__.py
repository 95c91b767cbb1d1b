"""Experiments: configs with grids, and what papers print and claim about their cells."""
