"""A local page over an index: pictures in, neighbours out."""
