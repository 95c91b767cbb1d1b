"""Reproducing the papers: their numbers, the runs of every cell, tables of both side by side."""
