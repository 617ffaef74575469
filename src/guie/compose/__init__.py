"""Several runs, or one, made into another without training."""
