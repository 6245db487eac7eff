"""The loop: rows are admitted, prefilled, stepped and refilled."""
