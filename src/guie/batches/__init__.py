"""From rows of a manifest to batches: sampling, views, loaders, class ids."""
