"""A job to look at: progress, tables, the page of its report."""
