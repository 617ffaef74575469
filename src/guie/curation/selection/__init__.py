"""Which data sets: tried by a proxy or by training, chosen greedily."""
