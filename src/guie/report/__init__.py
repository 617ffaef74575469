"""What people look at: figures, pages, notebooks."""
