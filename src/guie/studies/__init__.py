"""Studies: many runs as one table, from the grid of jobs to the results."""
