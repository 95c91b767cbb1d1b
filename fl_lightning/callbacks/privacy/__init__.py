"""Privacy: rules that add noise, and say how much of a client or of an example the model can then tell."""
