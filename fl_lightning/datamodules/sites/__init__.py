"""Data sets that other frameworks have dealt to clients, read from their files."""
