"""Figures, HTML pages, terminal tables and notebook helpers."""
