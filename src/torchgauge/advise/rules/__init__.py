"""One file per family of rules; importing a file registers its rules."""
