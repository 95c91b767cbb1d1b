"""Monitors: callbacks that measure a round and change nothing."""
