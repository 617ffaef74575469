"""Landmarks: towers, temples, castles and the like, from a grammar of storeys, roofs and openings."""
