"""Clients on other machines: NVIDIA FLARE carries the messages, over mutual TLS."""
