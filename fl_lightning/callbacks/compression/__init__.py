"""Compression: rules that let clients send fewer bytes."""
