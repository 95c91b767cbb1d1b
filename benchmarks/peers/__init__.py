"""Other frameworks: each trains the same case, in a script and an environment of its own."""
