"""Clients on other machines: what a server sends to them, what they send back, and who carries it."""
