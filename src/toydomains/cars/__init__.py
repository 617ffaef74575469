"""Cars on the road: a few convex bodies, four wheels, and the details that tell models apart."""
