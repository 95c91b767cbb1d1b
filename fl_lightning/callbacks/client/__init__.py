"""Rules that act in a client's training: losses, gradients, control variates."""
