"""The clients, their data, and who takes part in a round."""
