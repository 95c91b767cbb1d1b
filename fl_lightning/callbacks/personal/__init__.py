"""Personal rules: each client ends with a model of its own."""
