"""Writes and reads run folders: the only package that knows the names of their files."""
