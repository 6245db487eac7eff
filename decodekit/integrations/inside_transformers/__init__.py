"""The arguments that `generate` of transformers hands over, and the outputs that it gets back."""
