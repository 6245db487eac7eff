"""Documents: files, rows and remote objects as texts."""
