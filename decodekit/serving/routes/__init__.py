"""Routes of the endpoint, and how their answers are written."""
