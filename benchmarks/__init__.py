"""What fl-lightning costs: one command for the table of docs/results/performance.md, and scripts for the other pages."""
