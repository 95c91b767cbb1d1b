"""``fl-lightning sweep``: a user's own experiment, with a grid from the command line."""
