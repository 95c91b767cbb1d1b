"""What fl-lightning costs: one command for a table of docs/results/performance.md, and scripts for other pages."""
