"""From a checkpoint to the bytes of its tensors: pieces to tally, rows to examine."""
