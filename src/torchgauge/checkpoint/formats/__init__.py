"""Formats of single files, one module each."""
