"""Storefronts: a wall, a sign, an awning, a door and windows, seen from across the street."""
