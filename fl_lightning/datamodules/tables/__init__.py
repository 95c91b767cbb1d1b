"""Rows of tables, arrays, and the data sets of other libraries."""
