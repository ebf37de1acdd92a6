"""Figures of all weights together, and tensors that stand apart."""
