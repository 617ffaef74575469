"""Training: tasks, optimisers, stages, steps, and the run that holds them."""
