"""What the jobs have reached, and how long the rest takes, while they train."""
