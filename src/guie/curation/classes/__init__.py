"""Which classes, and how many images of each."""
