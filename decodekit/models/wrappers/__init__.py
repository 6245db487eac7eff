"""Models made of models: contrast, guidance, the first layers."""
