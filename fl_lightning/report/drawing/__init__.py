"""Plots as data, drawn by Plotly on the page and by Matplotlib for a paper."""
