"""Runs grouped into methods and experiments, compared with a baseline, and the verdict in words."""
