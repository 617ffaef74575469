"""What the domains draw with: outlines, pens, solids, surfaces, places, and the camera."""
