"""Ensembles and model soups: combine several models, or several views of one, without training."""
