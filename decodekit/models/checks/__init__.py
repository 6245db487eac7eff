"""Checks: is a way of running a model right? What was learned of a model is kept."""
