"""A benchmark: methods tuned with one budget, compared on several problems, and a page that answers which to take."""
