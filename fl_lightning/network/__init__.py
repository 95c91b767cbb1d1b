"""Clients on other machines: gRPC carries the messages, over mutual TLS."""
