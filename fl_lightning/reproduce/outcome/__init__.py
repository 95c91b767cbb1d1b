"""What came out: numbers of finished jobs beside the paper's, as tables, verdicts and pictures."""
