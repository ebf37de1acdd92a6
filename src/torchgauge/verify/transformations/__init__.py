"""Transformations by subject; importing a file registers them."""
