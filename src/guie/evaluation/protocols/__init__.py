"""Research protocols: queries and index of each search, and the report of their scores."""
