"""Who takes part in a round: samplers, which draw the clients, and simulations of clients that come and go."""
