"""What a rule is, and what it sees: the server, a client's local run and its work."""
