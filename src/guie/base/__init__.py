"""Shared basics: errors, files, devices, seeds, child processes."""
