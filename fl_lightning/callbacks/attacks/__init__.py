"""Attacks, in which clients send other updates than they learned, and faults, in which clients fail."""
