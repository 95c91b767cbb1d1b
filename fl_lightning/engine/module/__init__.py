"""The client module as numbers: its parameters as one vector, the rest of its state, what it logs."""
