"""Dishes from above: a plate with its rim, what lies on it, toppings, sauce, on a laid table."""
