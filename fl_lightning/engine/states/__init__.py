"""What a rule keeps for clients, in files, and its protection from hooks that fail."""
