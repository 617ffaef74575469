"""Read data from disk: manifests, public data sets, archives, images and image checks."""
