"""Labels by CLIP: how sure it is, and how many of each."""
