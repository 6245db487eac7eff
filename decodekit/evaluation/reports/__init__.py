"""A comparison to look at: summaries, tables, pictures, the page."""
