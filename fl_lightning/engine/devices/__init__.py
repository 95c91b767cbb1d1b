"""Several processes: they train different clients, and each knows what the others are at."""
