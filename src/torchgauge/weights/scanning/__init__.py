"""Every tensor of a checkpoint, read once: plan, tally, derive, collect."""
