"""Training: tasks, optimisers, stages, steps, and runs."""
