"""Interfaces of other tools: change the import line of a script, and it runs."""
