"""Whose the rows of a table are: the names of clients and domains, each client's own test rows, the splits."""
