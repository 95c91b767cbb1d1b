"""The numbers of K clients on the server: their updates, which every device keeps some columns of, and the cohort."""
