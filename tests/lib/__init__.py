"""What tests share: toy modules and data, hand-made cohorts, runs of the command line, and pictures of any size."""
