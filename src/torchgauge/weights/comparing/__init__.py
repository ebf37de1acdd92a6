"""Two checkpoints side by side."""
