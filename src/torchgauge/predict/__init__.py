"""What a model needs on a device that is not there."""
