"""Runs a round: cohort, local training, aggregation.

The engine contains no algorithm and no screen output, and writes nothing into a run folder but client states.
"""
