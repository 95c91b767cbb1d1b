"""Steps that partitions share."""
