"""Rules that act on the server: weights, corrections, reductions, server steps, refinements."""
