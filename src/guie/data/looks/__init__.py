"""How images look: whether they decode, fingerprints, hashes, thumbnails, two laid on each other."""
