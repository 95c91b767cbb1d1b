"""What every run measures of itself, and shows while it trains."""
