"""Data sets of images, and images with boxes."""
