"""A run on disk: its folder, its record of itself, its checkpoints."""
