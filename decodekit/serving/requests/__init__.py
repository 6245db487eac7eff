"""From the bytes of a request to what the engine is asked."""
