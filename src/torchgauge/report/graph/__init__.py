"""The computation graph: modules at their places in the run, the data between them, and where all of it stands."""
