"""What fl-lightning costs: one command for the table of docs/performance.md, and scripts for the other pages."""
