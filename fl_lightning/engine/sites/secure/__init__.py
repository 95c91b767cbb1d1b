"""Secure aggregation: sites hide what they send by masks, which are gone from the sum over a set of them."""
