"""Monitors: callbacks that only look."""
