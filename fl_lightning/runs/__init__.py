"""The run folder, written and read: the only room that knows the name of a file in it."""
