"""One file per family; each registers its transformations when it is imported."""
