"""Checkpoints that are folders, one module per layout."""
