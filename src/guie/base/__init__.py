"""What everything stands on: errors, files, devices, seeds, child processes."""
