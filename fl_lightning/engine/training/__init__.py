"""Who trains the clients of a round: one after another, or several in lock-step."""
