"""Toys on the floor: robots, bears, trains, rockets, blocks, of painted wood and plastic."""
