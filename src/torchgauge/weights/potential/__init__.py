"""What could be gained: quantization, pruning, another layout; and the words for it."""
