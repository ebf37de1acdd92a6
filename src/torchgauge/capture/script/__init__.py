"""TorchScript run node by node: inside the engine of torch the calls of modules could not be seen."""
