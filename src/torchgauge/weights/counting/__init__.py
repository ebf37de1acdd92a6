"""What is counted, and the figures that follow from the counts."""
