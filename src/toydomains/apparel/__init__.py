"""Apparel: garments laid flat. A class is a cut, a pattern, a palette, a neck, pockets, a print."""
