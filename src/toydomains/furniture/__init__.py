"""Furniture in a room, built of boxes and turned parts and seen from anywhere in front."""
