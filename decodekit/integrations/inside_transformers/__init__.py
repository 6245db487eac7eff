"""What `generate` of transformers hands over and gets back."""
