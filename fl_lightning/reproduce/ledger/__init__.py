"""The ledger: where every claim of the papers stands, by the results of all experiments."""
