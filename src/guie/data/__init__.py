"""What is on disk: manifests, published data sets, archives, images and how they look."""
